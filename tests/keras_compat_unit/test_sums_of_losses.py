"""Scalars of a step that are sums over rows: losses, logs and metrics are those of one device on the global batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist

keras = tf.keras
layers = keras.layers
RANDOM = np.random.default_rng(7)
# The last of three batches is smaller, so that replicas have different numbers of rows.
X, Y = RANDOM.normal(size=(37, 4)), RANDOM.normal(size=(37, 2))
BATCH = 16


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    package = keras.mixed_precision
    before = keras.backend.floatx(), package.global_policy() if hasattr(package, "global_policy") else None
    keras.backend.set_floatx("float64")
    package.set_global_policy("float64")
    yield
    keras.backend.set_floatx(before[0])
    package.set_global_policy(before[1] or before[0])


class Model(keras.Model):
    """Trains a loss of its own, and reports it as a log and as a metric."""

    def __init__(self, loss_of: Callable) -> None:
        super().__init__()
        self.inner, self.outer = layers.Dense(5, activation="tanh"), layers.Dense(2)
        self.loss_of, self.tracker = loss_of, keras.metrics.Mean(name="tracked")
        self.scale = tf.Variable(0.5, dtype="float64", trainable=False)

    def build(self, shape: Any) -> None:
        self.inner.build((None, 4))
        self.outer.build((None, 5))
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.outer(self.inner(inputs))

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(list(zip(tape.gradient(loss, weights), weights, strict=True)))
        self.tracker.update_state(loss)
        return {"loss": loss, "tracked": self.tracker.result(), "targets": tf.reduce_sum(tf.square(y))}

    def test_step(self, batch: Any) -> dict[str, Any]:
        loss = self.loss_of(self, *batch)
        self.tracker.update_state(loss)
        return {"loss": loss, "tracked": self.tracker.result()}


def errors(model: Any, x: Any, y: Any) -> Any:
    return tf.square(y - model(x, training=True))


def weights_of(model: Any) -> Any:
    return tf.add_n([tf.reduce_sum(tf.square(one.value if keras3() else one)) for one in model.trainable_variables])


def keras3() -> bool:
    return hasattr(keras, "ops")


LOSSES: dict[str, Callable] = {
    "a sum times a number": lambda m, x, y: tf.reduce_sum(tf.reduce_sum(errors(m, x, y), axis=1)) * (1.0 / BATCH),
    "a sum divided by a number": lambda m, x, y: tf.reduce_sum(errors(m, x, y)) / (2 * BATCH),
    "half the square of a norm": lambda m, x, y: tf.nn.l2_loss(y - m(x)) / BATCH,
    "a sum times a variable": lambda m, x, y: 0.1 * m.scale * tf.reduce_sum(errors(m, x, y)),
    "a difference of sums": lambda m, x, y: tf.reduce_sum(errors(m, x, y)) / 32 - tf.reduce_sum(m(x)) / 64,
    "a sum, a mean and a penalty": lambda m, x, y: (
        0.5 * (tf.reduce_sum(errors(m, x, y)) / BATCH + tf.reduce_mean(errors(m, x, y))) + 0.01 * weights_of(m)
    ),
    "a mean": lambda m, x, y: tf.reduce_mean(errors(m, x, y)),
    "a sum divided by the rows": lambda m, x, y: (
        tf.reduce_sum(errors(m, x, y)) / tf.cast(2 * tf.shape(x)[0], "float64")
    ),
    "a sum of means of features": lambda m, x, y: tf.reduce_sum(tf.reduce_mean(errors(m, x, y), axis=0)),
    "a sum of stacked means": lambda m, x, y: tf.reduce_sum(tf.stack([tf.reduce_mean(errors(m, x, y))] * 2)) / 2,
}
OF_CORE = ("a sum times a number", "a sum, a mean and a penalty", "a sum divided by the rows")
OF_KNOWN_ROWS: dict[str, Callable] = {
    "the global batch": lambda m, x, y: tf.reduce_sum(errors(m, x, y)) / BATCH,
    "the rows": lambda m, x, y: tf.reduce_sum(errors(m, x, y)) / x.shape[0],
    "the entries": lambda m, x, y: tf.reduce_sum(errors(m, x, y)) / (x.shape[0] * x.shape[1]),
}


def of_own_step(loss_of: Callable, *, drop_remainder: bool = False) -> list[Any]:
    model = Model(loss_of)
    model.build((None, 4))
    model.compile(keras.optimizers.SGD(0.05))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=drop_remainder)
    history = model.fit(data, epochs=2, verbose=0).history
    found = model.evaluate(data, verbose=0, return_dict=True)
    return [
        *model.get_weights(),
        *(history[name] for name in sorted(history)),
        *(found[name] for name in sorted(found)),
    ]


class AddsSum(layers.Layer):
    """Adds a sum over rows to the loss."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(0.05 * tf.reduce_sum(tf.square(inputs)))
        return inputs


def of_compiled(loss: Any, *inner: type) -> list[Any]:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), *(one() for one in inner), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.01), loss)
    history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), history["loss"], model.evaluate(X, Y, batch_size=BATCH, verbose=0)]


def check(program: Callable[[], list[Any]], *, devices: int) -> None:
    results = []
    for strategy in (tfdist.create_strategy("one_device"), tfdist.create_strategy("mirrored", devices=devices)):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            results.append(program())
    for expected, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize("devices", [2, pytest.param(3, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OF_CORE else pytest.mark.full) for name in LOSSES]
)
def test_a_step_of_its_own_trains_and_reports_the_loss_of_one_device(name: str, devices: int) -> None:
    check(lambda: of_own_step(LOSSES[name]), devices=devices)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize("name", OF_KNOWN_ROWS)
def test_a_number_that_is_read_from_a_shape_counts_the_rows_of_a_replica(name: str) -> None:
    check(lambda: of_own_step(OF_KNOWN_ROWS[name], drop_remainder=True), devices=2)


@pytest.mark.usefixtures("four_cpus")
def test_a_user_who_asks_for_replica_mean_says_that_sums_are_means() -> None:
    found = []
    for loss, rows in (("auto", BATCH), ("replica_mean", BATCH / 2)):
        keras.utils.set_random_seed(3)
        with tfdist.create_strategy("mirrored", devices=2, loss=loss).scope():
            model = Model(lambda m, x, y, rows=rows: tf.reduce_sum(errors(m, x, y)) / rows)
            model.build((None, 4))
            model.compile(keras.optimizers.SGD(0.05))
        model.fit(X[:32], Y[:32], batch_size=BATCH, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("four_cpus")
def test_a_scalar_and_a_vector_are_differentiated_together() -> None:
    def losses(m: Any, x: Any, y: Any) -> Any:
        return [tf.reduce_mean(errors(m, x, y)), tf.reduce_sum(errors(m, x, y), axis=1) / BATCH]

    class Both(Model):
        def train_step(self, batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                parts = losses(self, *batch)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(list(zip(tape.gradient(parts, weights), weights, strict=True)))
            return {"loss": parts[0]}

    def program() -> list[Any]:
        model = Both(lambda m, x, y: tf.reduce_mean(errors(m, x, y)))
        model.build((None, 4))
        model.compile(keras.optimizers.SGD(0.05))
        return [model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0).history["loss"], *model.get_weights()]

    check(program, devices=2)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize("inner", [(), (AddsSum,)])
def test_a_compiled_function_that_returns_a_sum_trains_the_loss_of_one_device(inner: tuple) -> None:
    check(lambda: of_compiled(lambda y, p: tf.reduce_sum(tf.square(y - p)), *inner), devices=2)


@pytest.mark.usefixtures("four_cpus")
def test_a_layer_that_adds_a_sum_to_the_loss_trains_that_of_one_device() -> None:
    check(lambda: of_compiled("mse", AddsSum), devices=2)
