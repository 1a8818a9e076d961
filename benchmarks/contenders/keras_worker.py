"""A rank that trains with tf.distribute: stock, or tfdist as the method says."""

from __future__ import annotations

import json
import os

import numpy as np
from common import arguments, run

found = arguments()
addresses = found.addresses.split(",")
kind, _, method = found.method.partition(" ")
if method == "alone":
    # Its share of the rows, and nobody to sum with.
    addresses, task = [addresses[found.rank]], {"type": "worker", "index": 0}
else:
    task = {"type": "worker", "index": found.rank}
os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [f"{one}:5000" for one in addresses]}, "task": task})
if kind == "stock":
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    import tfdist

    strategy = tfdist.create_strategy("multi_worker_mirrored")
    import tensorflow as tf

from network import Data, build  # noqa: E402  The strategy comes before any tensor.

data = Data(found)
with strategy.scope():
    model, optimizer = build(found, data.rows)
    if kind == "tfdist" and method not in ("bare", "alone"):
        from tfdist import AllReduceOptions
        from tfdist.optimizers import DistributedOptimizer

        # One pack: larger than all gradients together.
        options = {"bytes_per_pack": 1 << 30} if method == "one-pack" else {"compression": method or "none"}
        optimizer = DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(**options))
    optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def step(rows: tf.Tensor) -> tf.Tensor:
    def replica(rows: tf.Tensor) -> tf.Tensor:
        images, labels = data.batch(rows)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(losses(labels, model(images, training=True))) / found.batch
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return strategy.run(replica, args=(rows,))


last = [tf.zeros([])]


def one_step(rows: np.ndarray) -> None:
    last[0] = step(tf.constant(rows))


def finish() -> None:
    float(strategy.experimental_local_results(last[0])[0])


run(found, data.rows, one_step, finish, data.accuracy_of(model))
# The end of one is an error for the other, who may not be there yet.
strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None).numpy()
os._exit(0)
