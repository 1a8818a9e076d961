"""A step may differentiate a scalar and a vector together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
RANDOM = np.random.default_rng(7)
# The last batch is smaller, so that replicas have different numbers of rows.
X, Y = RANDOM.normal(size=(21, 4)), RANDOM.normal(size=(21, 2))


class Both(keras.Model):
    """Trains the mean of its errors, and the sum of a part of them."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            errors = tf.square(y - self(x, training=True))
            losses = [tf.reduce_mean(errors), tf.reduce_sum(errors, axis=1) / 16]
        variables = self.trainable_variables
        self.optimizer.apply_gradients(list(zip(tape.gradient(losses, variables), variables, strict=True)))
        return {"loss": losses[0]}


@pytest.mark.usefixtures("four_cpus")
def test_a_scalar_and_a_vector_are_differentiated_together() -> None:
    found = []
    for strategy in (tfdist.create_strategy("one_device"), tfdist.create_strategy("mirrored", devices=2)):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = Both()
            model.build((None, 4))
            model.compile(keras.optimizers.SGD(0.05))
        losses = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
        found.append([losses, *model.get_weights()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
