"""A rank that trains with tf.distribute: stock, or tfdist as the method says."""

from __future__ import annotations

import json
import os

import numpy as np
from common import HIDDEN, LEARNING_RATE, MOMENTUM, arguments, initial_weights, run

found = arguments()
addresses = found.addresses.split(",")
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": [f"{one}:5000" for one in addresses]}, "task": {"type": "worker", "index": found.rank}}
)
kind, _, method = found.method.partition(" ")
if kind == "stock":
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    import tfdist

    strategy = tfdist.create_strategy("multi_worker_mirrored")
    import tensorflow as tf

with strategy.scope():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((784,)),
            layers.Dense(HIDDEN, "relu"),
            layers.Dense(HIDDEN, "relu"),
            layers.Dense(10),
        ]
    )
    model.set_weights(initial_weights())
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    if kind == "tfdist" and method != "bare":
        from tfdist import AllReduceOptions
        from tfdist.optimizers import DistributedOptimizer

        # One pack: larger than all gradients together.
        options = {"bytes_per_pack": 1 << 30} if method == "one-pack" else {"compression": method or "none"}
        optimizer = DistributedOptimizer(optimizer, all_reduce=AllReduceOptions(**options))
    optimizer.build(model.trainable_variables)
    losses = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

data = np.load(found.data)
images, labels, test_images, test_labels = (tf.constant(data[name]) for name in ("x", "y", "test_x", "test_y"))


def scaled(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(values, tf.float32) / 255


@tf.function
def step(rows: tf.Tensor) -> tf.Tensor:
    def replica(rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows_loss = losses(tf.gather(labels, rows), model(scaled(tf.gather(images, rows)), training=True))
            loss = tf.reduce_sum(rows_loss) / found.batch
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return strategy.run(replica, args=(rows,))


@tf.function
def right() -> tf.Tensor:
    logits = model(scaled(test_images), training=False)
    return tf.reduce_mean(tf.cast(tf.argmax(logits, 1) == tf.cast(test_labels, tf.int64), tf.float64))


last = [tf.zeros([])]


def one_step(rows: np.ndarray) -> None:
    last[0] = step(tf.constant(rows))


def finish() -> None:
    float(strategy.experimental_local_results(last[0])[0])


run(found, len(data["x"]), one_step, finish, lambda: float(right()))
# The end of one is an error for the other, who may not be there yet.
strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None).numpy()
os._exit(0)
