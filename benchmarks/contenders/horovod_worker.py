"""Trains one rank with Horovod over Gloo; the method "horovod fp16" uses Horovod's float16 compression."""

from __future__ import annotations

import os
import time

import numpy as np
from common import parse_arguments, run

arguments = parse_arguments()
addresses = arguments.addresses.split(",")
port_file = arguments.folder / "port"
if arguments.rank == 0:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer(verbose=0)
    port = server.start()
    hosts = ",".join(f"{address}:1" for address in addresses)
    server.init(get_host_assignments(parse_hosts(hosts), len(addresses)))
    port_file.with_suffix(".new").write_text(str(port))
    port_file.with_suffix(".new").rename(port_file)
deadline = time.monotonic() + 60
while not port_file.exists():
    if time.monotonic() > deadline:
        raise TimeoutError("expected the port of rank 0's rendezvous server within 60 s, received none.")
    time.sleep(0.05)
os.environ.update(
    HOROVOD_RANK=str(arguments.rank),
    HOROVOD_SIZE=str(len(addresses)),
    HOROVOD_LOCAL_RANK="0",
    HOROVOD_LOCAL_SIZE="1",
    HOROVOD_CROSS_RANK=str(arguments.rank),
    HOROVOD_CROSS_SIZE=str(len(addresses)),
    HOROVOD_HOSTNAME=addresses[arguments.rank],
    HOROVOD_CONTROLLER="gloo",
    HOROVOD_CPU_OPERATIONS="gloo",
    HOROVOD_GLOO_IFACE="eth0",
    HOROVOD_GLOO_RENDEZVOUS_ADDR=addresses[0],
    HOROVOD_GLOO_RENDEZVOUS_PORT=port_file.read_text(),
)
import horovod.tensorflow as hvd  # noqa: E402  Horovod reads the environment variables above.
import tensorflow as tf  # noqa: E402
from network import Data, build  # noqa: E402

hvd.init()
data = Data(arguments)
model, optimizer = build(arguments, data.rows)
optimizer.build(model.trainable_variables)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
compression = hvd.Compression.fp16 if arguments.method.endswith(" fp16") else hvd.Compression.none


@tf.function
def step(rows: tf.Tensor) -> tf.Tensor:
    images, labels = data.batch(rows)
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


last = [tf.zeros([])]


def one_step(rows: np.ndarray) -> None:
    last[0] = step(tf.constant(rows))


run(arguments, data.rows, one_step, lambda: float(last[0]), data.accuracy_of(model))
hvd.allreduce(tf.ones([]), name="end").numpy()
os._exit(0)
