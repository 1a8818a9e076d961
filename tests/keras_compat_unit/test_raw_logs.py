"""A value that train_step returns under the name of a metric is not replaced by the result of the metric."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies import mirrored

keras = tf.keras


class ReturnsItsLoss(keras.Model):
    """A model whose loss has the name of Keras's own tracker, to which nothing is given."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, inputs):
        return self.dense(inputs)

    def train_step(self, data):
        x, y = data
        return {"loss": tf.reduce_mean(tf.square(y - self(x)))}


class Losses(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(logs["loss"]))


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_loss_with_the_name_of_a_metric_is_the_mean_over_the_global_batch(run_eagerly, four_cpus):
    x = np.random.default_rng(0).normal(size=(27, 4)).astype("float32")
    with mirrored(devices=2).scope():
        model = ReturnsItsLoss()
        model.compile(optimizer="sgd", run_eagerly=run_eagerly)
    losses = Losses()
    model.fit(x, 3 * x[:, :1], batch_size=16, shuffle=False, verbose=0, callbacks=[losses])
    squares = np.square(3 * x[:, :1] - x.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(losses.seen, [squares[:16].mean(), squares[16:].mean()], rtol=1e-5)
