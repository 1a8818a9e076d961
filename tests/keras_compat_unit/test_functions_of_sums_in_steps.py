"""A step of one's own, and layers with add_loss, have losses that are functions of sums over rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat.losses.global_batch import current_batch

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
layers = keras.layers
BATCH, STEPS, CLASSES = 8, 5, 4
RANDOM = np.random.default_rng(4)
# The rows of the first replicas have one token, most others have more.
X, Y = RANDOM.normal(size=(21, STEPS, 3)), RANDOM.integers(0, CLASSES, size=(21, STEPS))
Y[:5, 1:] = 0


def each(y: Any, p: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def masked(y: Any, p: Any) -> Any:
    mask = tf.cast(y != 0, p.dtype)
    return tf.reduce_sum(each(y, p) * mask) / tf.maximum(tf.reduce_sum(mask), 1)


def root(y: Any, p: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(tf.cast(y, p.dtype)[..., None] - p)))


def correlation(y: Any, p: Any) -> Any:
    a, b = tf.cast(y, p.dtype), p[..., 0]
    a, b = a - tf.reduce_mean(a), b - tf.reduce_mean(b)
    return 1 - tf.reduce_sum(a * b) / (tf.norm(a) * tf.norm(b) + 1e-7)


def divided_loss(y: Any, p: Any) -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    mask = tf.cast(y != 0, p.dtype)
    return loss(y, p, sample_weight=mask) / tf.reduce_sum(mask) + 0.1 * root(y, p)


def mean(y: Any, p: Any) -> Any:
    return tf.reduce_mean(each(y, p))


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mask": masked,
    "root": root,
    "correlation": correlation,
    "divided loss": divided_loss,
}


class Model(keras.Model):
    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function, self.found = function, list[bool]()
        self.hidden = layers.Dense(6, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.1))
        self.scores = layers.Dense(CLASSES)
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, x: Any) -> Any:
        return self.scores(self.hidden(x))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.function(y, self(x))
            total = 2.0 * loss + tf.add_n(self.losses)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        return self.logs(loss)

    def test_step(self, data: Any) -> dict[str, Any]:
        return self.logs(self.function(data[1], self(data[0])))

    def logs(self, loss: Any) -> dict[str, Any]:
        self.tracker.update_state(loss)
        batch = current_batch()
        if batch is not None and tf.distribute.in_cross_replica_context() is False:
            self.found.append(any(value is not None for _, value in batch.functions.values()))
        return {"loss": loss, "tracked": self.tracker.result()}


class Router(layers.Layer):
    """Balances the load of experts: its losses are a product of means over tokens, and an entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = layers.Dense(3)

    def call(self, x: Any) -> Any:
        gates = tf.reshape(tf.nn.softmax(self.gate(x)), [-1, 3])
        chosen = tf.one_hot(tf.argmax(gates, axis=-1), 3, dtype=gates.dtype)
        share = tf.reduce_mean(gates, axis=0)
        self.add_loss(9.0 * tf.reduce_mean(share * tf.reduce_mean(chosen, axis=0)))
        self.add_loss(0.1 * tf.reduce_sum(share * tf.math.log(share)))
        return tf.concat([x, tf.nn.softmax(self.gate(x))], axis=-1)


@functools.cache
def strategy_of(replicas: int) -> tf.distribute.Strategy:
    return tfdist.create_strategy("mirrored", devices=replicas)


def trained(make: Callable[[], Any], strategy: Any, whole: bool, loss: Any = None) -> tuple[Any, Any]:
    """Returns the model, and its history, evaluation and weights."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
        model(X[:2])
        model.compile(keras.optimizers.SGD(0.2, momentum=0.9), loss)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=whole)
    history = model.fit(data, epochs=2, verbose=0)
    return model, (history.history, model.evaluate(data, verbose=0), model.get_weights())


def compare(*results: Any) -> None:
    tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *results)


@pytest.mark.parametrize("whole", [False, True], ids=["uneven", "known rows"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_step_of_ones_own_has_the_numbers_of_one_device(name, whole):
    make = functools.partial(Model, FUNCTIONS[name])
    _, expected = trained(make, tf.distribute.get_strategy(), whole)
    model, own = trained(make, strategy_of(4), whole)
    compare(own, expected)
    assert set(model.found) == {True}


def test_a_mean_over_rows_needs_no_other_sum():
    make = functools.partial(Model, mean)
    _, expected = trained(make, tf.distribute.get_strategy(), whole=False)
    model, own = trained(make, strategy_of(2), whole=False)
    compare(own, expected)
    assert set(model.found) == {False}


class Masked(keras.losses.Loss):
    def call(self, y: Any, p: Any) -> Any:
        return masked(y, p)


@pytest.mark.parametrize("loss", [masked, Masked], ids=["function", "loss"])
def test_a_loss_in_a_function_of_its_own_stays_that_of_the_replica(loss):
    def within(y: Any, p: Any) -> Any:
        return tf.function(masked if loss is masked else Masked())(y, p)

    model, (history, *_) = trained(functools.partial(Model, within), strategy_of(2), whole=False)
    assert set(model.found) == {False}
    assert np.isfinite(history["loss"]).all()


def test_losses_of_layers_have_the_numbers_of_one_device():
    def make() -> Any:
        return keras.Sequential([layers.Dense(6, activation="tanh"), Router(), layers.Dense(CLASSES)])

    for loss in (masked, mean):
        _, expected = trained(make, tf.distribute.get_strategy(), whole=False, loss=loss)
        _, own = trained(make, strategy_of(4), whole=False, loss=loss)
        compare(own, expected)
