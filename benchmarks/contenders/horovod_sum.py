"""Sums tensors with Horovod and Gloo, in a tf.function: python horovod_sum.py RANK RANKS FOLDER PORT SIZE..."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sums import measure, wait_for

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
if rank == 0:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    server.init(get_host_assignments(parse_hosts(f"127.0.0.1:{ranks}"), ranks))
    (folder / "port~").write_text(str(port))
    (folder / "port~").rename(folder / "port")
os.environ.update(
    HOROVOD_RANK=str(rank),
    HOROVOD_SIZE=str(ranks),
    HOROVOD_LOCAL_RANK=str(rank),
    HOROVOD_LOCAL_SIZE=str(ranks),
    HOROVOD_CROSS_RANK="0",
    HOROVOD_CROSS_SIZE="1",
    HOROVOD_HOSTNAME="127.0.0.1",
    HOROVOD_CONTROLLER="gloo",
    HOROVOD_CPU_OPERATIONS="gloo",
    HOROVOD_GLOO_IFACE="lo",
    HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
    HOROVOD_GLOO_RENDEZVOUS_PORT=wait_for(folder / "port").decode(),
    # The default of 1 ms between two cycles would be all of the time of a small sum.
    HOROVOD_CYCLE_TIME="0.1",
)
import horovod.tensorflow as hvd  # noqa: E402  Horovod reads the environment variables above.
import tensorflow as tf  # noqa: E402

hvd.init()


def summed(elements: int):
    own = tf.ones([elements])

    @tf.function
    def total() -> tf.Tensor:
        return hvd.allreduce(own, op=hvd.Sum, name=f"sum_{elements}")

    last: list[tf.Tensor] = []

    def step() -> None:
        last[:] = [total()]

    return step, lambda: last[0].numpy()


measure(rank, ranks, sys.argv[5:], summed)
hvd.shutdown()
