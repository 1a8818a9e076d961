"""Sums tensors with tf.distribute: python tensorflow_sum.py RANK RANKS FOLDER PORT,TRANSPORT[,NAME=VALUE...] SIZE...

Names of settings: hosts, the IP addresses of all ranks, with + between them; an environment variable;
num_channels_per_target and recv_buf_max_chunk, which TensorFlow's server reads from its ConfigProto;
max_subdivs_per_device, of the operation CollectiveReduceV2.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

from sums import measure

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
port, transport, *words = sys.argv[4].split(",")
settings = dict(word.split("=") for word in words)
os.environ.update({name: value for name, value in settings.items() if name.isupper()})
hosts = settings.pop("hosts", "+".join(["127.0.0.1"] * ranks)).split("+")
cluster = {"worker": [f"{host}:{int(port) + other}" for other, host in enumerate(hosts)]}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})

import tensorflow as tf  # noqa: E402  TF_CONFIG comes first.

import tfdist  # noqa: E402

if settings:
    from tensorflow.python.eager import context
    from tensorflow.python.ops import collective_ops

    start_server = context.Context.enable_collective_ops

    def start_server_with_settings(self, server_def):
        config = server_def.default_session_config
        config.rpc_options.num_channels_per_target = int(settings.get("num_channels_per_target", 0))
        config.experimental.recv_buf_max_chunk = int(settings.get("recv_buf_max_chunk", 0))
        start_server(self, server_def)

    context.Context.enable_collective_ops = start_server_with_settings
    collective_ops.all_reduce_v2 = functools.partial(
        collective_ops.all_reduce_v2, max_subdivs_per_device=int(settings.get("max_subdivs_per_device", -1))
    )

strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=tfdist.AllReduceOptions(transport=transport))


def summed(elements: int):
    with strategy.scope():
        own = tf.Variable(tf.ones([elements]), trainable=False)

    @tf.function
    def total() -> tf.Tensor:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", own.read_value()))

    last: list[tf.Tensor] = []

    def step() -> None:
        # Only the first element is copied: the host has to wait for the sum.
        last[:] = [strategy.experimental_local_results(total())[0]]
        last[0][0].numpy()

    return step, lambda: last[0].numpy()


measure(rank, ranks, sys.argv[5:], summed)
with strategy.scope():
    tfdist.collectives.barrier()
os._exit(0)
