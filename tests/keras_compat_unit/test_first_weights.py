"""A layer that is built in the first step has the initial weights of one device, if the program sets a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist

keras = tf.keras


class BuiltInStep(keras.Model):
    """Has no call, so that its layers can only be built by a step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(3), keras.layers.Dense(2)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.outer(self.inner(x))))
        variables = [*self.inner.trainable_variables, *self.outer.trainable_variables]
        self.optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        return {"loss": loss}


@pytest.mark.usefixtures("four_cpus")
def test_layers_that_a_step_builds_have_the_weights_of_one_device() -> None:
    x = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
    found = []
    for strategy in (tfdist.create_strategy("one_device"), tfdist.create_strategy("mirrored", devices=2)):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = BuiltInStep()
            # Without a step, the initial weights.
            model.compile(keras.optimizers.SGD(0.0))
        model.fit(x, x[:, :2], batch_size=8, verbose=0)
        found.append([np.array(one) for layer in (model.inner, model.outer) for one in layer.get_weights()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
