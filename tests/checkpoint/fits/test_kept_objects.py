"""Interrupted fits keep optimizers and variables that a model has in lists, tuples and dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.fits.interrupted import BATCH, Interrupt, InterruptionError, data
from tfdist import create_strategy
from tfdist.averaging import LocalSGD
from tfdist.checkpoint import AutoResume
from tfdist.keras_compat.resume.variables import training_variables

keras = tf.keras


class OneOptimizerForEachLayer(keras.Model):
    """Trains each layer with an optimizer of its own, and counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers_in_order = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
        optimizers = [keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02)]
        self.optimizers, self.counted = {"first": optimizers[:1], "second": (optimizers[1],)}, [tf.Variable(0)]

    def build(self, shape: Any) -> None:
        for layer, size in zip(self.layers_in_order, (8, 8), strict=True):
            layer.build((None, size))
        for optimizer, layer in zip(self._optimizers(), self.layers_in_order, strict=True):
            optimizer.build(layer.trainable_variables)
        self.built = True

    def _optimizers(self) -> list[Any]:
        return [self.optimizers["first"][0], self.optimizers["second"][0]]

    def call(self, inputs: Any) -> Any:
        first, second = self.layers_in_order
        return second(first(inputs))

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_mean((self(x, training=True) - y) ** 2, axis=-1))
        for optimizer, layer in zip(self._optimizers(), self.layers_in_order, strict=True):
            variables = layer.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        self.counted[0].assign_add(1)
        return {"loss": loss}


def trained(strategy: tf.distribute.Strategy, *callbacks: Any) -> tuple[list[np.ndarray], int]:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = OneOptimizerForEachLayer()
        model.build((None, 8))
        model.compile()
    model.fit(*data(), batch_size=BATCH, epochs=3, verbose=0, callbacks=list(callbacks))
    return model.get_weights(), int(model.counted[0].numpy())


def test_optimizers_and_variables_in_lists_and_dictionaries_go_on(strategy, tmp_path):
    expected, steps = trained(strategy)
    resume = {"every_steps": 2}
    with pytest.raises(InterruptionError):
        trained(strategy, Interrupt(train=10), AutoResume(str(tmp_path / "run"), **resume))
    found, found_steps = trained(strategy, AutoResume(str(tmp_path / "run"), **resume))
    assert steps == found_steps == 21
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_variable_of_several_replicas_is_kept_once():
    with create_strategy("mirrored", devices=2).scope():
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        model.compile(LocalSGD(keras.optimizers.SGD(0.1), every=2), "mse")
    model.fit(np.zeros([4, 3]), np.zeros([4, 2]), verbose=0)
    assert not [name for name in training_variables(model) if "_values" in name]
