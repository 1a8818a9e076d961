"""Losses with the reduction "sum", which a step divides itself: by rows, by a mask, by what all replicas have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.collectives import all_gather, all_reduce
from tfdist.keras_compat.losses.divided_sums import are_divided_by_rows

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
layers = keras.layers
BATCH, STEPS, CLASSES = 16, 5, 4
RANDOM = np.random.default_rng(5)
# The last batch has one row. Three steps of each row have a class, so that each part of a batch has the same share.
X, Y = RANDOM.normal(size=(49, STEPS, 3)), np.zeros([49, STEPS], int)
Y[:, :3] = RANDOM.integers(1, CLASSES, size=(49, 3))


def rows(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], tf.float64)


def mask(y: Any) -> Any:
    return tf.cast(y > 0, tf.float64)


def positives(y: Any) -> Any:
    return tf.maximum(tf.reduce_sum(mask(y)), 1.0)


def positions(y: Any) -> Any:
    """Returns weights of steps, whose sum is 1."""
    weights = 0.9 ** tf.cast(tf.range(tf.shape(y)[1]), tf.float64)
    return weights / tf.reduce_sum(weights)


# Each function gets the sum of cross-entropies, the predictions and the batch.
MEANS: dict[str, Callable[..., Any]] = {
    "rows": lambda summed, p, x, y: summed(y, p) / rows(x),
    "reciprocal of rows": lambda summed, p, x, y: summed(y, p) * (1.0 / rows(x)),
    "mask": lambda summed, p, x, y: summed(y, p, sample_weight=mask(y)) / tf.reduce_sum(mask(y)),
    "at least one": lambda summed, p, x, y: 0.5 * summed(y, p, sample_weight=mask(y)) / positives(y),
    "selected": lambda summed, p, x, y: summed(y, p) / tf.cast(tf.shape(tf.where(y > 0))[0], tf.float64),
    "divided weights": lambda summed, p, x, y: summed(y, p, sample_weight=mask(y) / positives(y)),
    "weights by reciprocal": lambda summed, p, x, y: summed(y, p, sample_weight=mask(y) * (1.0 / positives(y))),
    "with another loss": lambda summed, p, x, y: (
        summed(y, p, sample_weight=mask(y) / positives(y)) + 0.1 * summed(y, p) / BATCH
    ),
}
SUMS: dict[str, Callable[..., Any]] = {
    "constant": lambda summed, p, x, y: summed(y, p) / BATCH,
    "mask of all replicas": lambda summed, p, x, y: summed(y, p) / all_reduce(tf.reduce_sum(mask(y))),
    "weights by all replicas": lambda summed, p, x, y: summed(
        y, p, sample_weight=mask(y) / all_reduce(tf.reduce_sum(mask(y)))
    ),
    "another sum": lambda summed, p, x, y: summed(y, p, sample_weight=mask(y)) / summed(y, tf.zeros_like(p)),
    "mean of a mask": lambda summed, p, x, y: summed(y, p) / (BATCH * tf.reduce_sum(mask(y)) / rows(y)),
    "mean": lambda summed, p, x, y: summed(y, p) / (BATCH * tf.reduce_mean(mask(y))),
    "mean of classes": lambda summed, p, x, y: (
        summed(y, p) / (BATCH * tf.reduce_sum(tf.reduce_mean(tf.nn.softmax(p), axis=[0, 1])))
    ),
    "weights of mean 1": lambda summed, p, x, y: (
        summed(y, p, sample_weight=mask(y) / tf.reduce_sum(mask(y)) * rows(y)) / BATCH
    ),
    "divided and multiplied": lambda summed, p, x, y: summed(y, p) / tf.reduce_sum(mask(y)) * rows(x) / BATCH,
    "weights of the mean 1, by entries": lambda summed, p, x, y: (
        summed(y, p, sample_weight=mask(y) / tf.reduce_sum(mask(y)) * tf.cast(tf.size(y), tf.float64)) / BATCH
    ),
    "other axes": lambda summed, p, x, y: (
        summed(y, p) * (1.0 / tf.cast(tf.reduce_prod(tf.shape(x)[1:]), tf.float64)) / BATCH
    ),
    "positions": lambda summed, p, x, y: summed(y, p, sample_weight=mask(y) * positions(y)) / BATCH,
    "a mask of all replicas": lambda summed, p, x, y: summed(y, p) / tf.reduce_sum(all_gather(mask(y))),
    "one row": lambda summed, p, x, y: summed(y, p) / (BATCH * tf.reduce_sum(mask(y)[0])),
    "a mean as factor": lambda summed, p, x, y: summed(y, p) * (tf.reduce_sum(mask(y)) / rows(y)) / BATCH,
}


class Model(keras.Model):
    """A linear model, trained and evaluated with a loss of its own."""

    def __init__(self, loss_of: Callable[..., Any]) -> None:
        super().__init__()
        self.loss_of = loss_of
        self.dense = layers.Dense(CLASSES)
        self.summed = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self.summed, self(x, training=True), x, y)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        self.tracker.update_state(self.loss_of(self.summed, self(x, training=False), x, y))
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]


def trained(loss_of: Callable[..., Any], data: tf.data.Dataset, strategy: Any) -> list[Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Model(loss_of)
        model.compile(optimizer=keras.optimizers.SGD(0.1))
    history = model.fit(data, epochs=2, verbose=0).history["loss"]
    return [*model.get_weights(), np.asarray(history), np.asarray(model.evaluate(data, verbose=0))]


# A known number of rows is a constant of the graph. CI runs two of these cases.
CASES = [
    pytest.param(name, known, marks=pytest.mark.full if known and name not in ("mask", "another sum") else ())
    for name in (*MEANS, *SUMS)
    for known in (False, True)
]


@pytest.mark.parametrize(("name", "known"), CASES)
def test_a_sum_that_the_step_divides_is_that_of_one_device(name: str, known: bool) -> None:
    loss_of = {**MEANS, **SUMS}[name]
    length = len(X) - len(X) % BATCH if name in SUMS else len(X)
    data = tf.data.Dataset.from_tensor_slices((X[:length], Y[:length])).batch(BATCH, drop_remainder=known)
    expected = trained(loss_of, data, None)
    found = trained(loss_of, data, tfdist.create_strategy("mirrored", devices=2))
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


class Logged(Model):
    """Trains a sum, and returns it divided by a sum over rows."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = 0.01 * self.summed(y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result(), "divided": loss / tf.reduce_sum(mask(y))}


def test_a_sum_that_is_divided_for_a_log_stays_a_sum() -> None:
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    found = []
    for strategy in (None, tfdist.create_strategy("mirrored", devices=2)):
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            model = Logged(lambda *batch: 0.0)
            model.compile(optimizer=keras.optimizers.SGD(0.1))
        found.append([np.asarray(model.fit(data, epochs=2, verbose=0).history["loss"]), *model.get_weights()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


def test_a_compiled_loss_with_divided_weights_is_that_of_one_device() -> None:
    class Weighted(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, **others: Any) -> Any:
            return super().compute_loss(x, y, y_pred, mask(y) / positives(y), **others)

    def run(strategy: Any) -> list[Any]:
        keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            inputs = layers.Input((STEPS, 3))
            model = Weighted(inputs, layers.Dense(CLASSES)(inputs))
            summed = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
            model.compile(optimizer=keras.optimizers.SGD(0.1), loss=summed)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
        history = model.fit(data, epochs=2, verbose=0).history["loss"]
        return [*model.get_weights(), np.asarray(history), np.asarray(model.evaluate(data, verbose=0))]

    for one, other in zip(run(None), run(tfdist.create_strategy("mirrored", devices=2)), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 1e-310, 0.0])
def test_a_factor_that_cannot_be_a_number_of_rows_is_none(factor: float) -> None:
    with tf.Graph().as_default():
        weights = tf.compat.v1.placeholder(tf.float64, [8, 3])
        assert not are_divided_by_rows(weights * tf.constant(factor, tf.float64), 8)
        assert are_divided_by_rows(weights / tf.reduce_sum(weights), 8)
