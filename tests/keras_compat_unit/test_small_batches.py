"""Batches and losses for which a replica's own numbers are easily taken for those of the global batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat import keras_in_use

keras = tf.keras
layers = keras.layers
RANDOM = np.random.default_rng(5)
X, Y = RANDOM.normal(size=(16, 4)), RANDOM.normal(size=(16, 2))
SERIES = RANDOM.normal(size=(16, 5, 3))
SERIES[::3, 2:] = 0

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.skipif(not keras_in_use().is_keras3, reason="the mends are those of Keras 3"),
]


def compiled(*inner: Any, loss: Any = "mse", **options: Any) -> Any:
    model = keras.Sequential([layers.Input((4,)), *inner, layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["mae"], **options)
    return model


def of_two_series() -> Any:
    model = keras.Sequential([
        layers.Input((5, 3)), layers.Masking(), layers.BatchNormalization(synchronized=True), layers.Dense(1)
    ])  # fmt: skip
    model.compile(keras.optimizers.SGD(0.1), "mse")
    # The last batch has fewer rows.
    model.fit(SERIES[:13], SERIES[:13, :, :1], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), model.evaluate(SERIES[:13], SERIES[:13, :, :1], batch_size=8, verbose=0)


def on_batches_of_other_rows() -> Any:
    model = compiled(layers.Dense(5), layers.BatchNormalization(synchronized=True))
    logs = [model.train_on_batch(X[:rows], Y[:rows], return_dict=True) for rows in (4, 4, 3, 1, 8)]
    return model.get_weights(), logs


def on_one_row(first: int) -> Any:
    model = compiled()
    if first:
        model.train_on_batch(X[:first], Y[:first])
    model.reset_metrics()
    logs = [call(X[:1], Y[:1], return_dict=True) for call in (model.train_on_batch, model.test_on_batch)]
    return model.get_weights(), logs


def eagerly(*inner: Any) -> Any:
    model = compiled(*inner, run_eagerly=True)
    losses = model.fit(X[:5], Y[:5], batch_size=4, shuffle=False, verbose=0).history["loss"]
    return model.get_weights(), losses, model.evaluate(X[:5], Y[:5], batch_size=4, verbose=0)


class Scalar(keras.losses.Loss):
    """A loss of one number: the mean or the sum over the rows."""

    def __init__(self, of_rows: Callable, **options: Any) -> None:
        super().__init__(**options)
        self.of_rows = of_rows

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.of_rows(tf.square(y_true - y_pred))


def with_scalar(of_rows: Callable) -> Any:
    model = compiled(loss=Scalar(of_rows, reduction="sum"))
    losses = model.fit(X[:14], Y[:14] / 10, batch_size=8, shuffle=False, verbose=0).history["loss"]
    return model.get_weights(), losses


class Twins(keras.Model):
    """Adds a sum over the differences of two kernels to its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = layers.Dense(2), layers.Dense(2)
        self.difference = keras.losses.MeanSquaredError(reduction="sum")

    def call(self, inputs: Any) -> Any:
        return self.one(inputs) + self.other(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x))) + self.difference(self.one.kernel, self.other.kernel)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"all": loss}


class Divided(keras.Model):
    """Divides its loss by the global batch, and returns the half of a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_mean(tf.square(y - self(x)), axis=-1))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"all": loss, "energy": 0.5 * tf.reduce_mean(tf.square(x))}


def of_own_step(kind: Callable[[], Any]) -> Any:
    model = kind()
    model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return model.get_weights(), {name: values for name, values in history.items() if name != "loss"}


def of_sparse_rows() -> Any:
    rows = tf.sparse.from_dense(np.where(abs(X) > 0.5, X, 0))
    model = keras.Sequential([layers.Input((4,), sparse=True), layers.Dense(1, activation="sigmoid")])
    loss = keras.losses.BinaryCrossentropy(reduction="sum")
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[keras.metrics.TruePositives()])
    logs = model.train_on_batch(rows, (Y[:, :1] > 0).astype(float), return_dict=True)
    return model.get_weights(), logs


PROGRAMS: dict[str, Callable[[], Any]] = {
    "synchronized batch normalization with a mask": of_two_series,
    "batches of other rows, synchronized batch normalization": on_batches_of_other_rows,
    "one row": lambda: on_one_row(0),
    "one row after four": lambda: on_one_row(4),
    "one row, eagerly": eagerly,
    "one row, eagerly, with a regularizer": lambda: eagerly(layers.Dense(5, kernel_regularizer="l2")),
    "reduction sum of a mean": lambda: with_scalar(tf.reduce_mean),
    "reduction sum of a sum": lambda: with_scalar(tf.reduce_sum),
    "reduction sum over weights": lambda: of_own_step(Twins),
    "a factor of one half": lambda: of_own_step(Divided),
    "sparse rows": of_sparse_rows,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("four_cpus", "no_surroundings")
def test_two_replicas_have_the_numbers_of_one_device(name: str) -> None:
    found = []
    for strategy in ("one_device", "mirrored"):
        options = {"devices": 2} if strategy == "mirrored" else {}
        keras.utils.set_random_seed(1)
        with tfdist.create_strategy(strategy, **options).scope():
            found.append(tf.nest.flatten(PROGRAMS[name]()))
    expected, own = found
    assert len(own) == len(expected)
    for one, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)
