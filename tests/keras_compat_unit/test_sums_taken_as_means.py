"""A program whose sums over rows are taken as means has a line in the log, and one with means has none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat import keras_in_use

keras = tf.keras
layers = keras.layers
RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(32, 4)), RANDOM.normal(size=(32, 2))
GLOBAL_BATCH = 16
LINE = "has a loss that is a sum over rows"

pytestmark = pytest.mark.usefixtures("float64")


class Model(keras.Model):
    """A linear model with a loss of its own, for a function of inputs, predictions, targets and the model."""

    def __init__(self, loss_of: Callable) -> None:
        super().__init__()
        self.loss_of = loss_of
        self.dense = layers.Dense(2, kernel_initializer="ones")
        self.scale = tf.Variable(2.0, dtype=tf.float64, trainable=False)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, self(x, training=True), y, self)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"value": loss}


class Added(layers.Layer):
    """Adds a loss for a function of its inputs."""

    def __init__(self, loss_of: Callable) -> None:
        super().__init__()
        self.loss_of = loss_of

    def call(self, inputs: Any) -> Any:
        self.add_loss(self.loss_of(inputs))
        return inputs


def with_loss(loss: Any, *inner: Any, **options: Any) -> Any:
    dense = layers.Dense(2, kernel_initializer="ones", **options)
    model = keras.Sequential([layers.Input((4,)), dense, *inner])
    model.compile(keras.optimizers.SGD(0.05), loss)
    return model


def squares(p: Any, y: Any) -> Any:
    return tf.reduce_mean(tf.square(p - y), axis=1)


def rows(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], x.dtype)


# Losses that are not those of one device without loss="global_sum".
SUMS: dict[str, Callable] = {
    "times 1 / global batch": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) * (1.0 / GLOBAL_BATCH),
    "divided by the global batch": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) / GLOBAL_BATCH,
    "divided by a tensor": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) / tf.cast(GLOBAL_BATCH, p.dtype),
    "with a penalty of weights": lambda x, p, y, m: (
        tf.reduce_sum(squares(p, y)) / GLOBAL_BATCH + 0.01 * tf.reduce_sum(tf.square(m.dense.kernel))
    ),
    "in two steps": lambda x, p, y, m: tf.reduce_sum(0.5 * squares(p, y)) / 4.0 / 4.0,
    "of all entries": lambda x, p, y, m: tf.reduce_sum(tf.square(p - y)) / (2 * GLOBAL_BATCH),
    "scaled by a variable": lambda x, p, y, m: m.scale * (tf.reduce_sum(squares(p, y)) / GLOBAL_BATCH),
    "next to a mean": lambda x, p, y, m: tf.reduce_mean(squares(p, y)) + tf.reduce_sum(tf.square(p)) * 0.003,
    "of sums of features": lambda x, p, y, m: (
        tf.reduce_mean(tf.reduce_sum(tf.square(p - y), axis=0)) / 3
        + tf.reduce_sum(tf.reduce_sum(tf.square(p), axis=0)) / 3
    ),
    "of a list": lambda x, p, y, m: (
        tf.reduce_sum([tf.reduce_sum(squares(p, y)), tf.reduce_sum(squares(p, 0))]) / GLOBAL_BATCH
    ),
    "complex": lambda x, p, y, m: tf.cast(
        tf.reduce_sum(tf.complex(squares(p, y), squares(p, y))) * tf.constant(0.2 + 0.1j, tf.complex128), p.dtype
    ),
    "of halves of squares": lambda x, p, y, m: tf.nn.l2_loss(p - y) / (2 * GLOBAL_BATCH),
}
MEANS: dict[str, Callable] = {
    "mean": lambda x, p, y, m: tf.reduce_mean(squares(p, y)),
    "half of a mean": lambda x, p, y, m: 0.5 * tf.reduce_mean(squares(p, y)),
    "mean and weights": lambda x, p, y, m: tf.reduce_mean(squares(p, y)) + 0.01 * tf.reduce_sum(m.dense.kernel**2),
    "divided by rows": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) / rows(x),
    "divided by Python's rows": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) / (x.shape[0] or rows(x)),
    "divided by Python's rows, and a factor": lambda x, p, y, m: (
        0.25 * tf.reduce_sum(squares(p, y)) / (x.shape[0] or rows(x))
    ),
    "half, divided by Python's rows": lambda x, p, y, m: 0.5 * tf.reduce_sum(squares(p, y)) / (x.shape[0] or rows(x)),
    "divided by a product of a shape": lambda x, p, y, m: (
        tf.reduce_sum(tf.square(p - y)) / tf.cast(tf.reduce_prod(tf.shape(y)), y.dtype)
    ),
    "divided by ones": lambda x, p, y, m: tf.reduce_sum(squares(p, y)) / tf.reduce_sum(tf.ones_like(squares(p, y))),
    "divided by entries": lambda x, p, y, m: tf.reduce_sum(tf.square(p - y)) / tf.cast(tf.size(y), y.dtype),
    "divided before": lambda x, p, y, m: tf.reduce_sum(squares(p, y) / rows(x)) * 0.5,
    "times the inverse": lambda x, p, y, m: tf.reduce_sum(squares(p, y) * (1.0 / rows(x))),
    "times half of the inverse": lambda x, p, y, m: 0.5 * tf.reduce_sum(squares(p, y)) * (1.0 / rows(x)),
    "sum of means": lambda x, p, y, m: tf.reduce_sum(tf.reduce_mean(tf.square(p - y), axis=0)) * 0.25,
    "average loss": lambda x, p, y, m: tf.nn.compute_average_loss(squares(p, y), global_batch_size=GLOBAL_BATCH),
    "Keras loss": lambda x, p, y, m: keras.losses.MeanSquaredError()(y, p),
}
COMPILED_SUMS: dict[str, Callable[[], Any]] = {
    "function": lambda: with_loss(lambda y, p: tf.reduce_sum(tf.square(y - p)) / 32.0),
    "added": lambda: with_loss("mse", Added(lambda x: 0.1 * tf.reduce_sum(x))),
}
COMPILED_MEANS: dict[str, Callable[[], Any]] = {
    "mean": lambda: with_loss("mse"),
    "function": lambda: with_loss(lambda y, p: tf.reduce_mean(tf.square(y - p))),
    "function of rows": lambda: with_loss(lambda y, p: tf.reduce_sum(tf.square(y - p), axis=-1)),
    "added": lambda: with_loss("mse", Added(lambda x: 0.1 * tf.reduce_mean(x))),
    "regularizers": lambda: with_loss("mse", activity_regularizer="l2", kernel_regularizer="l2"),
}

if keras_in_use().is_keras3:
    # Keras 2 takes scalars only.
    COMPILED_MEANS["added for each row"] = lambda: with_loss("mse", Added(lambda x: 0.1 * tf.reduce_sum(x, axis=1)))


def of_own_step(loss_of: Callable) -> Any:
    model = Model(loss_of)
    model.compile(keras.optimizers.SGD(0.05))
    return model


def trained(strategy: str, make: Callable[[], Any], *, drop_remainder: bool, **options: Any) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    options |= {"devices": 2} if strategy == "mirrored" else {}
    with tfdist.create_strategy(strategy, **options).scope():
        model = make()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(GLOBAL_BATCH, drop_remainder=drop_remainder)
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def differ(own: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return not all(np.allclose(one, other, rtol=1e-10, atol=1e-10) for one, other in zip(own, expected, strict=True))


def programs(steps: dict[str, Callable], compiled: dict[str, Callable[[], Any]]) -> list[Any]:
    own = [pytest.param(functools.partial(of_own_step, loss_of), id=name) for name, loss_of in steps.items()]
    return [*own, *(pytest.param(make, id=f"compiled, {name}") for name, make in compiled.items())]


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("make", programs(SUMS, COMPILED_SUMS))
def test_a_sum_that_is_taken_as_a_mean_has_a_line_in_the_log(make: Any, drop_remainder: bool, caplog: Any) -> None:
    expected = trained("one_device", make, drop_remainder=drop_remainder)
    assert LINE not in caplog.text
    own = trained("mirrored", make, drop_remainder=drop_remainder)
    # Once the numbers are right, the line is wrong.
    assert differ(own, expected)
    assert caplog.text.count(LINE) == 1


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("make", programs(MEANS, COMPILED_MEANS))
def test_means_have_no_line_in_the_log(make: Any, drop_remainder: bool, caplog: Any) -> None:
    expected = trained("one_device", make, drop_remainder=drop_remainder)
    own = trained("mirrored", make, drop_remainder=drop_remainder)
    assert not differ(own, expected)
    assert LINE not in caplog.text


class DividesLater(Model):
    """Divides a second loss for all replicas, after the gradient of the first one."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        variables = self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            p = self(x, training=True)
            one, other = tf.reduce_sum(squares(p, y)) / GLOBAL_BATCH, squares(p, 0)
        gradients = tape.gradient(one, variables)
        with tape:
            other = tf.nn.compute_average_loss(other, global_batch_size=GLOBAL_BATCH)
        added = zip(gradients, tape.gradient(other, variables), strict=True)
        self.optimizer.apply_gradients(zip([a + b for a, b in added], variables, strict=True))
        return {"value": tf.constant(0.0)}


def test_a_division_after_the_sum_is_seen_before_the_line(caplog: Any) -> None:
    def make() -> Any:
        model = DividesLater(squares)
        model.compile(keras.optimizers.SGD(0.05))
        model(X[:1])
        # Keras 2 makes the variables of an optimizer in the step only once.
        model.optimizer.build(model.trainable_variables)
        return model

    expected = trained("one_device", make, drop_remainder=False)
    assert not differ(trained("mirrored", make, drop_remainder=False), expected)
    assert LINE not in caplog.text


@pytest.mark.parametrize("loss", ["global_sum", "replica_mean"])
def test_a_user_who_has_chosen_gets_no_line(loss: str, caplog: Any) -> None:
    make = functools.partial(of_own_step, SUMS["times 1 / global batch"])
    own = trained("mirrored", make, drop_remainder=True, loss=loss)
    assert LINE not in caplog.text
    assert differ(own, trained("one_device", make, drop_remainder=True)) == (loss == "replica_mean")
