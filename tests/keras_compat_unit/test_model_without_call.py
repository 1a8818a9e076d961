"""A model with a train_step and without `call` is trained under a strategy, as it is without a strategy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.keras_compat.version import keras, keras_in_use


def model_of(network):
    class Own(keras().Model):
        def __init__(self):
            super().__init__()
            self.network = network

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.network(x) - y))
            variables = self.network.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"loss": loss}

    return Own()


@pytest.mark.parametrize("name", ["one_device", "mirrored"])
def test_a_model_without_call_is_trained(name):
    strategy = create_strategy(name)
    layers = keras().layers
    with strategy.scope():
        model = model_of(keras().Sequential([layers.Input((2,)), layers.Dense(1, kernel_initializer="zeros")]))
        model.compile(keras().optimizers.SGD(0.5))
    x, y = np.ones([4, 2], "float32"), np.ones([4, 1], "float32")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(4), verbose=0)
    # The gradient of (k1 + k2 + b - 1)^2 at 0 is -2 for each weight.
    np.testing.assert_allclose(model.network.get_weights()[0], [[1.0], [1.0]], rtol=1e-6)


class OfTwo(keras().Model):
    """A model whose call takes two inputs, and whose train_step gives them to it."""

    def __init__(self):
        super().__init__()
        self.dense = keras().layers.Dense(1, kernel_initializer="zeros")

    def call(self, inputs):
        one, two = inputs
        return self.dense(one) + self.dense(two)


class TrainedOnTwo(OfTwo):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self([x, x])
            loss = tf.reduce_mean(tf.square(outputs - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return self.compute_metrics(x, y, outputs, None)


def fitted(model, batch=3, epochs=2):
    x, y = np.ones([6, 2], "float32"), np.ones([6, 1], "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
    return model.fit(data, epochs=epochs, verbose=0).history


def paths_of(model):
    """Returns the paths of the weights without the name of the model, which has a number in each model of a process."""
    paths = [weight.path.split("/") for weight in model.weights]
    assert all(path[0].startswith("trained_on_two") for path in paths)
    return [re.sub(r"_\d+$", "", layer) + "/" + name for _, layer, name in paths]


@pytest.mark.parametrize("eager", [False, True], ids=["traced", "eager"])
@pytest.mark.parametrize("name", ["one_device", "mirrored", "central_storage"])
def test_a_model_whose_call_takes_something_else_has_the_numbers_of_one_device(name, eager):
    if not keras_in_use().is_keras3:
        return
    expected = TrainedOnTwo()
    expected.compile(keras().optimizers.SGD(0.05), metrics=["mae"])
    history = fitted(expected)
    with create_strategy(name, **({} if name == "one_device" else {"devices": 2})).scope():
        model = TrainedOnTwo()
        model.compile(keras().optimizers.SGD(0.05), metrics=["mae"], run_eagerly=eager)
    np.testing.assert_allclose(fitted(model)["mae"], history["mae"], rtol=1e-5)
    # Options of optimizers, such as those of LAMB, name variables by their paths.
    assert paths_of(model) == paths_of(expected)
    for weight, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-6)


def test_what_no_step_of_the_model_can_repair_is_raised_as_by_keras():
    if not keras_in_use().is_keras3:
        return
    with create_strategy("mirrored", devices=2).scope():
        model = OfTwo()
        model.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=r"^Unable to automatically build the model"):
        fitted(model)


def test_a_layer_that_is_first_called_within_the_step_is_trained():
    if not keras_in_use().is_keras3:
        return
    with create_strategy("mirrored", devices=2).scope():
        model = model_of(keras().Sequential([keras().layers.Dense(1, kernel_initializer="zeros")]))
        model.compile(keras().optimizers.SGD(0.5))
    fitted(model, batch=6, epochs=1)
    # As above.
    np.testing.assert_allclose(model.network.get_weights()[0], [[1.0], [1.0]], rtol=1e-6)


def test_a_variable_that_the_step_makes_is_named():
    if not keras_in_use().is_keras3:
        return

    class WithVariable(TrainedOnTwo):
        def train_step(self, data):
            if not hasattr(self, "late"):
                self.late = tf.Variable(0.0, name="late")
            return super().train_step(data)

    with create_strategy("mirrored", devices=2).scope():
        model = WithVariable()
        model.compile("sgd")
    with pytest.raises(ValueError, match=r"^expected the variables of a step .* received late, which the step makes; "):
        fitted(model)
