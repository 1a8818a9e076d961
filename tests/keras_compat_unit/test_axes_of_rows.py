"""Losses in which the axis of the rows is easily taken for another axis, and batches whose rows change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist

keras = tf.keras
X = np.random.default_rng(3).normal(size=(16, 3))
Y = np.random.default_rng(4).normal(size=(16, 2))


@pytest.fixture
def strategy(four_cpus: None, no_surroundings: None) -> Any:
    return tfdist.create_strategy("mirrored", devices=2)


class Heads(keras.layers.Layer):
    """Adds a loss for each row: the mean over several heads, which are stacked along the first axis."""

    def build(self, shape: Any) -> None:
        self.heads = [
            self.add_weight(shape=(3, 2), initializer=keras.initializers.Constant(0.1 * number), name=f"head{number}")
            for number in range(4)
        ]

    def call(self, inputs: Any) -> Any:
        values = [tf.reduce_sum(tf.matmul(inputs, head) ** 2, axis=1) for head in self.heads]
        self.add_loss(tf.reduce_mean(tf.stack(values), axis=0))
        return tf.matmul(inputs, self.heads[0])


class Chosen(keras.layers.Layer):
    """Adds a loss for each row, or zeros, as a condition says; or stacks what it computes for single rows."""

    def __init__(self, *, rows_alone: bool) -> None:
        super().__init__()
        self.rows_alone = rows_alone

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 2), initializer="ones", name="kernel")

    def call(self, inputs: Any) -> Any:
        outputs = tf.matmul(inputs, self.kernel)
        if self.rows_alone and inputs.shape[0] is not None:
            rows = [tf.reduce_sum(tf.linalg.matvec(self.kernel, row, transpose_a=True)) for row in tf.unstack(inputs)]
            self.add_loss(tf.stack(rows) ** 2)
        else:
            size = tf.reduce_sum(outputs, axis=1) ** 2
            self.add_loss(tf.cond(tf.size(inputs) > 0, lambda: size, lambda: tf.zeros_like(size)))
        return outputs


class Balanced(keras.layers.Layer):
    """Divides by sums along both axes in turn, as Sinkhorn's algorithm does, and adds a loss for each row."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 2), initializer="ones", name="kernel")

    def call(self, inputs: Any) -> Any:
        shares = tf.exp(tf.matmul(inputs, self.kernel))
        for _ in range(10):
            shares /= tf.reduce_sum(shares, axis=0, keepdims=True)
            shares /= tf.reduce_sum(shares, axis=1, keepdims=True)
        self.add_loss(tf.reduce_sum(shares * shares, axis=1))
        return shares


class Stacked(keras.layers.Layer):
    """Adds a loss with as many entries as a replica has rows, each of which is a mean over the rows."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 2), initializer="ones", name="kernel")

    def call(self, inputs: Any) -> Any:
        outputs = tf.matmul(inputs, self.kernel)
        self.add_loss(tf.stack([tf.reduce_mean(tf.tanh(outputs) ** (number + 1)) for number in range(4)]))
        return outputs


COUNTS = {
    "first": lambda shape: shape[0],
    "from the end": lambda shape: shape[-2],
    "of several": lambda shape: tf.unstack(shape)[0],
    "reversed": lambda shape: shape[::-1][1],
}


class Divided(keras.Model):
    """Divides a sum over rows by their number."""

    count: Callable[[Any], Any]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            total = keras.losses.MeanSquaredError(reduction="sum")(y, y_pred)
            loss = total / tf.cast(self.count(tf.shape(y)), y_pred.dtype)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"value": loss}


def trained(strategy: Any, make: Callable[[], Any], train: Callable[[Any], None]) -> list[np.ndarray]:
    """Returns the weights in float64 after a training, on one device if there is no strategy."""
    scope = (strategy or tf.distribute.get_strategy()).scope()
    compute_in("float64")
    try:
        with scope:
            keras.utils.set_random_seed(1)
            model = make()
        train(model)
        return model.get_weights()
    finally:
        compute_in("float32")


def compute_in(floatx: str) -> None:
    keras.backend.set_floatx(floatx)
    keras.mixed_precision.set_global_policy(floatx)


def assert_equals_one_device(strategy: Any, make: Callable[[], Any], train: Callable[[Any], None]) -> None:
    found, expected = (trained(one, make, train) for one in (strategy, None))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def of(layer: Callable[[], Any]) -> Any:
    model = keras.Sequential([keras.layers.Input((3,)), layer()])
    model.compile(keras.optimizers.SGD(0.1))
    return model


def fit_static(model: Any) -> None:
    """Trains with batches of which each replica is known to have four rows."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    data = tf.data.Dataset.from_tensor_slices(X).batch(8, drop_remainder=True).with_options(options)
    model.fit(data, epochs=2, verbose=0)


def test_a_mean_over_as_many_heads_as_a_replica_has_rows_belongs_to_rows(strategy: Any) -> None:
    assert_equals_one_device(strategy, lambda: of(Heads), fit_static)


@pytest.mark.parametrize("rows_alone", [False, True])
def test_a_loss_for_each_row_is_one_if_it_is_chosen_or_stacked(strategy: Any, rows_alone: bool) -> None:
    assert_equals_one_device(strategy, lambda: of(lambda: Chosen(rows_alone=rows_alone)), fit_static)


def test_a_list_of_as_many_means_as_a_replica_has_rows_does_not_belong_to_rows(strategy: Any) -> None:
    assert_equals_one_device(strategy, lambda: of(Stacked), fit_static)


def test_a_loss_is_looked_at_in_a_time_that_grows_with_its_length_only(strategy: Any) -> None:
    for weights in trained(strategy, lambda: of(Balanced), fit_static):
        assert np.isfinite(weights).all()


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_sum_may_be_divided_by_the_rows_in_several_ways(strategy: Any, count: Callable[[Any], Any]) -> None:
    def make() -> Any:
        inputs = keras.layers.Input((3,))
        model = Divided(inputs, keras.layers.Dense(2)(inputs))
        model.count = count
        model.compile(keras.optimizers.SGD(0.1))
        return model

    assert_equals_one_device(
        strategy, make, lambda model: model.fit(X[:7], Y[:7], batch_size=4, shuffle=False, verbose=0)
    )


def test_a_batch_may_have_other_rows_than_the_one_before(strategy: Any) -> None:
    def make() -> Any:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    def train(model: Any) -> None:
        for rows in (4, 3, 4, 5, 1):
            model.train_on_batch(X[:rows], Y[:rows])

    assert_equals_one_device(strategy, make, train)
