"""Gradients of a mean over rows with respect to rows, and to tensors that are computed from weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
# A replica has as many rows as there are features and units.
ROWS = 8
RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(4 * ROWS, ROWS)), RANDOM.normal(size=(4 * ROWS, 1))


def errors(y: Any, x: Any, kernel: Any, head: Any) -> Any:
    return tf.reduce_sum(tf.square(y - tf.matmul(tf.tanh(tf.matmul(x, kernel)), head)), axis=1)


class Copied(keras.Model):
    """Applies to a weight the gradient with respect to a tensor that is computed from it."""

    copy: Callable[..., Any]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        kernel, head = self.trainable_variables
        copy = self.copy(kernel, lambda one: tf.reduce_mean(errors(y, x, one, head)))
        with tf.GradientTape() as tape:
            tape.watch(copy)
            loss = tf.reduce_mean(errors(y, x, copy, head))
        self.optimizer.apply_gradients([(tape.gradient(loss, copy), kernel), (tf.zeros_like(head), head)])
        return {"value": loss}


class Moved(keras.Model):
    """Trains on rows that are moved along the gradient of a loss."""

    source: Callable[[Any], Any]
    given: Callable[..., Any]
    loss_of: Callable[[Any], Any]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        kernel, head = self.trainable_variables
        source = self.source(self, x)
        with tf.GradientTape() as tape:
            tape.watch(source)
            loss = self.loss_of(errors(y, self.given(x, source, kernel), kernel, head))
        moved = tf.stop_gradient(source + 3.0 * tape.gradient(loss, source))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(errors(y, self.given(x, moved, kernel), kernel, head))
        gradients = tape.gradient(loss, [kernel, head])
        self.optimizer.apply_gradients(list(zip(gradients, [kernel, head], strict=True)))
        return {"value": loss}


def weights(strategy: Any, make: Callable[..., Any], *, is_static: bool = True, **ways: Any) -> list[np.ndarray]:
    """Returns the weights after four batches; all have the same rows if their number is known."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.layers.Input((ROWS,))
        hidden = keras.layers.Dense(ROWS, use_bias=False)(inputs)
        model = make(inputs, keras.layers.Dense(1, use_bias=False)(hidden))
        for name, way in ways.items():
            setattr(model, name, way)
        model.compile(keras.optimizers.SGD(0.1))
    rows = len(X) if is_static else len(X) - 3
    data = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(2 * ROWS, drop_remainder=is_static)
    model.fit(data, epochs=1, verbose=0)
    return model.get_weights()


def assert_equals_one_device(make: Callable[..., Any], **options: Any) -> None:
    strategies = (tfdist.create_strategy("one_device"), tfdist.create_strategy("mirrored", devices=2))
    for one, other in zip(*(weights(strategy, make, **options) for strategy in strategies), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


def noise(shape: Any) -> Any:
    """Returns zeros that are computed from random numbers, as other replicas draw other ones."""
    return tf.random.normal(shape, dtype=tf.float64) * 0.0


def stepped(kernel: Any, loss_of: Callable[[Any], Any]) -> Any:
    """Returns a weight that is computed from its gradient, as after an inner step."""
    value = tf.convert_to_tensor(kernel)
    with tf.GradientTape() as tape:
        tape.watch(value)
        loss = loss_of(value)
    # Replicas would take different steps.
    return value - 0.0 * tape.gradient(loss, value)


COPIES = {
    "a function of it": lambda kernel, loss_of: tf.tanh(2.0 * tf.convert_to_tensor(kernel)),
    "with noise": lambda kernel, loss_of: kernel + noise(kernel.shape),
    "with some entries left out": lambda kernel, loss_of: kernel * (noise(kernel.shape) + 1.0),
    "after a step": stepped,
}


@pytest.mark.usefixtures("four_cpus", "no_surroundings")
@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_a_weight_as_long_as_a_replica_has_rows_has_no_rows(copy: Callable[..., Any]) -> None:
    assert_equals_one_device(Copied, copy=lambda *args: copy(*args))


def embedded(model: Any, x: Any) -> Any:
    return tf.gather(tf.convert_to_tensor(model.trainable_variables[0]), tf.argmax(x, axis=1))


def looked_up(model: Any, x: Any) -> Any:
    return tf.nn.embedding_lookup(getattr(model.layers[1].kernel, "_value", model.layers[1].kernel), tf.argmax(x, 1))


# The tensor with respect to which the loss is differentiated, and what the model gets.
SOURCES = {
    "inputs": (lambda model, x: tf.identity(x), lambda x, s, kernel: s),
    "scaled inputs": (lambda model, x: x / 2.0, lambda x, s, kernel: 2.0 * s),
    "hidden": (lambda model, x: tf.matmul(x, model.trainable_variables[0]), lambda x, s, kernel: s + x),
    "zeros": (lambda model, x: tf.zeros_like(x), lambda x, s, kernel: x + s),
    "noise": (lambda model, x: noise(tf.shape(x)), lambda x, s, kernel: x + s),
    "one-hot": (lambda model, x: tf.one_hot(tf.argmax(x, 1), ROWS, dtype=tf.float64), lambda x, s, kernel: x + s),
    "embeddings": (embedded, lambda x, s, kernel: x + s),
    "rows of a table": (looked_up, lambda x, s, kernel: x + s),
}


# With a known number of rows a tensor is judged by its length.
CASES = [
    pytest.param(name, static, marks=() if static and name != "scaled inputs" else pytest.mark.full)
    for name in SOURCES
    for static in (True, False)
]


@pytest.mark.usefixtures("four_cpus", "no_surroundings")
@pytest.mark.parametrize(("name", "is_static"), CASES)
def test_rows_are_moved_as_on_one_device(name: str, is_static: bool) -> None:
    source, given = SOURCES[name]
    assert_equals_one_device(Moved, is_static=is_static, source=source, given=given, loss_of=tf.reduce_mean)


def moved(x: Any, source: Any, kernel: Any) -> Any:
    return source


def pairs(values: Any) -> Any:
    """Returns two entries for each row, as of the tokens of a text."""
    return tf.stack([values, tf.sqrt(values + 1.0)], axis=1)


def count(values: Any) -> Any:
    return tf.cast(tf.shape(values)[0], values.dtype)


def or_zero(value: Any) -> Any:
    return tf.where(tf.math.is_nan(value), tf.zeros_like(value), value)


MEANS = {
    "over all tokens": lambda e: tf.reduce_mean(tf.reshape(pairs(e), [-1])),
    "of a function of all tokens": lambda e: tf.reduce_mean(tf.square(tf.reshape(pairs(e)[:, :, None], [-1, 1]))),
    "sum over all tokens, divided": lambda e: tf.reduce_sum(tf.reshape(pairs(e), [-1])) / count(e),
    "time-major": lambda e: tf.reduce_mean(tf.transpose(pairs(e))),
    "concatenated": lambda e: tf.reduce_mean(tf.concat([e, 2.0 * e], axis=0)),
    "stacked": lambda e: tf.reduce_mean(tf.stack([e, 2.0 * e])),
    "clipped": lambda e: tf.clip_by_value(tf.maximum(tf.reduce_mean(e), 0.0), -1e9, 1e9),
    "a term that is clipped": lambda e: 0.5 * tf.nn.relu(tf.reduce_mean(e)) + tf.minimum(tf.reduce_mean(e) / 2.0, 1e9),
    "finite": lambda e: or_zero(tf.reduce_mean(e)),
    "einsum": lambda e: tf.einsum("b->", e) / count(e),
    "an entry of means": lambda e: tf.reduce_mean(pairs(e), axis=0)[1],
    "a Loss": lambda e: keras.losses.MeanSquaredError()(tf.zeros_like(e)[:, None], e[:, None]),
}
OTHERS = {
    "for each row": lambda e: e,
    "a clipped value for each row": lambda e: tf.maximum(e, 0.1),
    "sum over all tokens": lambda e: tf.reduce_sum(tf.reshape(pairs(e), [-1])),
    "einsum": lambda e: tf.einsum("bt->", pairs(e)),
    "sum of a Loss that is not reduced": lambda e: tf.reduce_sum(
        keras.losses.MeanSquaredError(reduction="none")(tf.zeros_like(e)[:, None], e[:, None])
    ),
    "clipped sum": lambda e: tf.maximum(tf.reduce_sum(e), 0.0),
    "finite sum": lambda e: or_zero(tf.reduce_sum(e)),
    "mean of sums": lambda e: tf.reduce_mean(tf.reduce_sum(pairs(e), axis=0)),
    "mean of sums in another shape": lambda e: tf.reduce_mean(tf.reshape(tf.reduce_sum(pairs(e), axis=0), [1, 2])),
    "mean of stacked sums": lambda e: tf.reduce_mean(tf.stack([tf.reduce_sum(e), tf.reduce_sum(2.0 * e)])),
    "mean of concatenated sums": lambda e: tf.reduce_mean(tf.concat([tf.reduce_sum(pairs(e), 0)] * 3, axis=0)),
    "sum divided by a clipped mean": lambda e: tf.reduce_sum(e) / tf.maximum(tf.reduce_mean(0.0 * e + 1.0), 0.5),
}
LOSSES = {**{f"mean: {name}": loss for name, loss in MEANS.items()}, **{f"sum: {k}": v for k, v in OTHERS.items()}}
LOSS_CASES = [
    pytest.param(name, static, marks=() if static else pytest.mark.full) for name in LOSSES for static in (True, False)
]


@pytest.mark.usefixtures("four_cpus", "no_surroundings")
@pytest.mark.parametrize(("name", "is_static"), LOSS_CASES)
def test_a_loss_is_taken_as_a_mean_over_rows_if_it_is_one(name: str, is_static: bool) -> None:
    source = SOURCES["inputs"][0]
    assert_equals_one_device(Moved, is_static=is_static, source=source, given=moved, loss_of=LOSSES[name])
