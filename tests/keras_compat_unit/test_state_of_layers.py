"""State that a layer assigns in a step: means over rows are averaged over replicas, sums added up, all else is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.averaging import LocalSGD
from tfdist.keras_compat import keras_in_use

keras = tf.keras
ROWS = np.arange(36.0).reshape(12, 3) - 7.0
FIRST, SECOND = ROWS[:4], ROWS[4:8]


class Stateful(keras.layers.Layer):
    """Assigns the result of a function of the variable and the inputs."""

    def __init__(self, shape: tuple[int, ...], change: Callable[[Any, Any], Any], **options: Any) -> None:
        super().__init__(dtype="float64")
        self.state = self.add_weight(
            shape=shape, initializer="zeros", trainable=False, name="state", dtype="float64", **options
        )
        self.change = change

    def call(self, inputs: Any, training: Any = None) -> Any:
        if training:
            self.change(self.state, inputs)
        return inputs


class Traced(Stateful):
    """Does the same in a function of its own."""

    @tf.function
    def note(self, inputs: Any) -> None:
        self.change(self.state, inputs)

    def call(self, inputs: Any, training: Any = None) -> Any:
        if training:
            self.note(inputs)
        return inputs


def states(
    strategy: Any,
    change: Callable,
    *,
    shape: tuple[int, ...] = (3,),
    rows: int = 8,
    optimizer: Any = None,
    **options: Any,
) -> list[np.ndarray]:
    """Returns the state of each replica after one batch, of which each replica has had one half."""
    with strategy.scope():
        layer = Stateful(shape, change, **options)
        model = keras.Sequential([keras.layers.Input((3,), dtype="float64"), layer, keras.layers.Dense(1)])
        model.compile(optimizer or "sgd", "mse")
    model.fit(ROWS[:rows], np.ones((rows, 1)), batch_size=rows, epochs=1, shuffle=False, verbose=0)
    value = getattr(layer.state, "_value", layer.state)
    return [one.numpy() for one in strategy.experimental_local_results(value)]


@pytest.fixture
def strategy(four_cpus: None, no_surroundings: None) -> Any:
    return tfdist.create_strategy("mirrored", devices=2)


def assigned(state: Any, x: Any) -> tf.Tensor:
    state.assign(tf.reduce_mean(x, axis=0))
    return tf.zeros([])


MEANS = {
    "mean": lambda state, x: state.assign(tf.reduce_mean(x, axis=0)),
    "mean of an axis from the end": lambda state, x: state.assign(tf.reduce_mean(x, axis=-2)),
    "moments": lambda state, x: state.assign(0.5 * state + 2.0 * tf.nn.moments(x, [0])[0] * 0.5),
    "assign_add": lambda state, x: state.assign_add(tf.reduce_mean(x, axis=0)),
    "assign_sub": lambda state, x: state.assign_sub(-tf.reduce_mean(x, axis=0)),
    "in a condition": lambda state, x: tf.cond(tf.size(x) >= 0, lambda: assigned(state, x), lambda: tf.zeros([])),
}


# With 8 rows the replicas have equal shares, and with 1 row one replica has none.
CASES = [
    pytest.param(name, rows, marks=() if rows == 7 or name == "mean" else pytest.mark.full)
    for name in MEANS
    for rows in (8, 7, 1)
]


@pytest.mark.parametrize(("name", "rows"), CASES)
def test_a_mean_over_rows_is_that_of_all_rows_on_every_replica(strategy: Any, name: str, rows: int) -> None:
    for state in states(strategy, MEANS[name], rows=rows):
        np.testing.assert_allclose(state, ROWS[:rows].mean(axis=0), rtol=0, atol=1e-12)


def count(x: Any) -> Any:
    return tf.cast(tf.shape(x)[0], x.dtype)


def error(x: Any) -> Any:
    """Returns a mean over rows that is computed by a Loss."""
    before = keras.backend.floatx()
    keras.backend.set_floatx("float64")
    try:
        return keras.losses.MeanSquaredError()(x, tf.zeros_like(x))
    finally:
        keras.backend.set_floatx(before)


# Ways to put means together, and what they give of all rows.
JOINED = {
    "stacked": (lambda x: tf.stack([tf.reduce_mean(x), tf.reduce_mean(x**2)]), lambda x: [x.mean(), (x**2).mean()]),
    "with what is known": (
        lambda x: 0.5 * tf.stack([tf.reduce_mean(x), 3.0]) + 1.0,
        lambda x: [0.5 * x.mean() + 1.0, 2.5],
    ),
    "concatenated": (
        lambda x: tf.concat([tf.reduce_mean(x, 0), tf.reduce_sum(x[:, :1], 0) / count(x)], 0),
        lambda x: [*x.mean(axis=0), x[:, 0].mean()],
    ),
    "sliced": (lambda x: tf.reduce_mean(x, 0)[1:], lambda x: x.mean(axis=0)[1:]),
    "one entry": (lambda x: [tf.reduce_mean(x, 0)[1]], lambda x: [x.mean(axis=0)[1]]),
    "of a stack": (lambda x: [tf.reduce_mean(tf.stack([tf.reduce_mean(x), 2.0]))], lambda x: [x.mean() / 2.0 + 1.0]),
    "of a loss": (lambda x: [error(x)], lambda x: [(x**2).mean()]),
    "products of a row's entries": (
        lambda x: tf.matmul(x, x, transpose_a=True) / count(x),
        lambda x: x.T @ x / len(x),
    ),
}
JOINED_CASES = [
    pytest.param(name, rows, marks=() if rows == 7 or name == "stacked" else pytest.mark.full)
    for name in JOINED
    for rows in (7, 1)
]


@pytest.mark.parametrize(("name", "rows"), JOINED_CASES)
def test_means_may_be_put_together(strategy: Any, name: str, rows: int) -> None:
    change, expected = JOINED[name][0], np.asarray(JOINED[name][1](ROWS[:rows]))
    for state in states(strategy, lambda state, x: state.assign(change(x)), shape=expected.shape, rows=rows):
        np.testing.assert_allclose(state, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", JOINED)
def test_means_may_be_put_together_if_the_number_of_rows_is_known(strategy: Any, name: str) -> None:
    change, expected = JOINED[name][0], np.asarray(JOINED[name][1](ROWS[:8]))
    found = states(strategy, lambda state, x: state.assign(change(tf.ensure_shape(x, (4, 3)))), shape=expected.shape)
    for state in found:
        np.testing.assert_allclose(state, expected, rtol=0, atol=1e-10)


# What has an entry for a row, or is no linear function of means.
OWN = {
    "stacked with a value of a row": (
        lambda x: tf.stack([tf.reduce_mean(x), x[0, 0]]),
        lambda x: [x.mean(), x[0, 0]],
    ),
    "stacked with a maximum": (
        lambda x: tf.stack([tf.reduce_mean(x), tf.reduce_max(x)]),
        lambda x: [x.mean(), x.max()],
    ),
    "stacked with a clipped mean": (
        lambda x: tf.stack([tf.reduce_mean(x), tf.minimum(tf.reduce_mean(x), -3.0)]),
        lambda x: [x.mean(), min(x.mean(), -3.0)],
    ),
    "stacked with a product of means": (
        lambda x: tf.stack([tf.reduce_mean(x), tf.reduce_mean(x) * tf.reduce_mean(x**2)]),
        lambda x: [x.mean(), x.mean() * (x**2).mean()],
    ),
    "concatenated with rows": (
        lambda x: tf.concat([x, tf.reduce_mean(x, 0, keepdims=True)], 0),
        lambda x: [*x, x.mean(axis=0)],
    ),
    "rows that are sliced": (lambda x: x[:2], lambda x: x[:2]),
    "a mean over other entries that is sliced": (lambda x: tf.reduce_mean(x, 1)[:2], lambda x: x.mean(axis=1)[:2]),
    "the largest of the means": (
        lambda x: [tf.reduce_max(tf.stack([tf.reduce_mean(x), 0.0]))],
        lambda x: [max(x.mean(), 0.0)],
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_what_is_put_together_of_other_values_stays_as_it_is(strategy: Any, name: str) -> None:
    change, of_part = OWN[name]
    expected = [np.asarray(of_part(part)) for part in (FIRST, SECOND)]
    found = states(strategy, lambda state, x: state.assign(change(x)), shape=expected[0].shape)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_state_of_rows_and_what_is_no_mean_stay_as_they_are(strategy: Any) -> None:
    kept = states(strategy, lambda state, x: state.assign(x), shape=(4, 3))
    np.testing.assert_array_equal(kept, [FIRST, SECOND])
    largest = states(strategy, lambda state, x: state.assign(tf.maximum(state, tf.reduce_max(x, axis=0))))
    np.testing.assert_array_equal(largest, [np.maximum(0.0, part.max(axis=0)) for part in (FIRST, SECOND)])


def test_state_of_rows_from_which_their_mean_is_subtracted_stays_as_it_is(strategy: Any) -> None:
    kept = states(strategy, lambda state, x: state.assign(x**2 - tf.reduce_mean(x**2, axis=0)), shape=(4, 3))
    expected = [part**2 - (part**2).mean(axis=0) for part in (FIRST, SECOND)]
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-12)


def test_a_mean_over_time_is_state_of_rows(strategy: Any) -> None:
    """The axis of the rows is the second one of what is averaged."""
    kept = states(
        strategy,
        lambda state, x: state.assign(tf.reduce_mean(tf.transpose(x[:, :, None], [1, 0, 2]), axis=0)),
        shape=(4, 1),
    )
    expected = [part.mean(axis=1, keepdims=True) for part in (FIRST, SECOND)]
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-12)


def test_the_rows_of_a_tensor_of_unknown_rank_may_be_counted(strategy: Any) -> None:
    def change(state: Any, x: Any) -> None:
        size = tf.numpy_function(lambda one: one, [x], tf.float64)
        state.assign(tf.reduce_sum(x, axis=0) / tf.cast(tf.shape(size)[0], tf.float64))

    assert np.isfinite(states(strategy, change)).all()


def test_a_mean_of_weights_is_no_mean_over_rows_if_one_replica_alone_has_as_many(strategy: Any) -> None:
    """Of three rows one replica has two, as many as the weights have."""
    weights = np.arange(6.0).reshape(2, 3)
    with strategy.scope():
        fixed = tf.Variable(weights, trainable=False)
        layer = Stateful((3,), lambda state, x: state.assign(tf.reduce_mean(fixed, axis=0)))
        model = keras.Sequential([keras.layers.Input((3,), dtype="float64"), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.train_on_batch(ROWS[:3], np.ones((3, 1)))
    np.testing.assert_allclose(layer.state.numpy(), weights.mean(axis=0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("run_eagerly", [True, pytest.param(False, marks=pytest.mark.full)])
def test_what_one_replica_sees_anew_in_a_function_of_the_step_is_averaged_on_all(
    strategy: Any, run_eagerly: bool
) -> None:
    """A function is traced again only by the replica that has fewer rows in the last batch."""
    with strategy.scope():
        layer = Traced((3,), lambda state, x: state.assign(0.5 * state + tf.reduce_mean(x, axis=0)))
        model = keras.Sequential([keras.layers.Input((3,), dtype="float64"), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    model.fit(ROWS[:7], np.ones((7, 1)), batch_size=4, epochs=2, shuffle=False, verbose=0)
    expected = np.zeros(3)
    for part in (ROWS[:4], ROWS[4:7]) * 2:
        expected = 0.5 * expected + part.mean(axis=0)
    value = getattr(layer.state, "_value", layer.state)
    for state in strategy.experimental_local_results(value):
        np.testing.assert_allclose(state, expected, rtol=0, atol=1e-12)


def test_a_mean_may_be_divided_by_an_entry_of_a_table(strategy: Any) -> None:
    def change(state: Any, x: Any) -> None:
        table = tf.constant([[1.0, 2.0], [4.0, 8.0]], tf.float64)
        state.assign(tf.reduce_mean(x, axis=0) / table[0, 1])

    for state in states(strategy, change):
        np.testing.assert_allclose(state, ROWS[:8].mean(axis=0) / 2.0, rtol=0, atol=1e-12)


def test_replicas_in_local_steps_keep_their_own_means(strategy: Any) -> None:
    optimizer = LocalSGD(keras.optimizers.SGD(0.01), every=5)
    own = states(strategy, MEANS["mean"], optimizer=optimizer)
    np.testing.assert_allclose(own, [FIRST.mean(axis=0), SECOND.mean(axis=0)], rtol=0, atol=1e-12)


SUMS = {
    "assign_add": lambda state, x: state.assign_add(tf.reduce_sum(x, axis=0)),
    "assign": lambda state, x: state.assign(state + tf.reduce_sum(x, axis=0)),
    "assign what a function has read": lambda state, x: state.assign(
        tf.cond(tf.size(x) > 0, lambda: state + tf.reduce_sum(x, axis=0), lambda: state + 0.0)
    ),
}


@pytest.mark.skipif(not keras_in_use().is_keras3, reason="with Keras 2, assign with SUM adds up the assigned values")
@pytest.mark.parametrize("change", SUMS.values(), ids=SUMS)
def test_a_variable_with_the_aggregation_sum_counts_all_rows_once(strategy: Any, change: Callable) -> None:
    def twice(state: Any, x: Any) -> None:
        change(state, x)
        change(state, x)

    for state in states(strategy, twice, aggregation="sum"):
        np.testing.assert_allclose(state, 2 * ROWS[:8].sum(axis=0), rtol=0, atol=1e-12)


@pytest.mark.skipif(not keras_in_use().is_keras3, reason="with Keras 2, assign with SUM adds up the assigned values")
def test_a_variable_with_the_aggregation_sum_may_begin_again(strategy: Any) -> None:
    def counted(state: Any, x: Any) -> None:
        for _ in range(2):
            state.assign(tf.zeros_like(state))
            state.assign_add(tf.cast(tf.shape(x)[:1], state.dtype))

    np.testing.assert_array_equal(states(strategy, counted, shape=(1,), aggregation="sum"), [[8.0], [8.0]])
