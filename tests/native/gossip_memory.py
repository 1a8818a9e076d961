"""Takes steps of D-PSGD with a network of 23 MB, and prints by how many MB the process grows in 30 steps."""

from __future__ import annotations

import tensorflow as tf

import tfdist
from tests.native.memory import megabytes
from tfdist.averaging import DPSGD

strategy = tfdist.create_strategy("multi_worker_mirrored", all_reduce=tfdist.AllReduceOptions(transport="native"))
with strategy.scope():
    layers = [tf.keras.layers.Input((784,)), *(tf.keras.layers.Dense(width) for width in (2048, 2048, 10))]
    model = tf.keras.Sequential(layers)
    variables = model.trainable_variables
    optimizer = DPSGD(tf.keras.optimizers.SGD(0.01, momentum=0.9), mixing="exponential")
    optimizer.build(variables)


def of_replica(rows: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(rows) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


step = tf.function(lambda rows: strategy.run(of_replica, args=(rows,)))
for _ in range(15):
    step(tf.ones([8, 784]))
before = megabytes()
for _ in range(30):
    step(tf.ones([8, 784]))
print(f"grown by {megabytes() - before:.0f} MB")
strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None)
