"""Losses and metrics that are functions of sums over rows have the value and the gradient of one device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat.losses.global_batch import current_batch, global_batch
from tfdist.keras_compat.losses.rule import StepRule
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch
from tfdist.keras_compat.losses.weighting import part_of_global, weighted_gradients
from tfdist.keras_compat.version import keras_in_use

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
KERAS_3 = keras_in_use().is_keras3
BATCH, STEPS, CLASSES = 8, 5, 4
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(BATCH, STEPS, 3))
# Rows of the first replica have one token, most others have more; the last one has none.
Y = RANDOM.integers(0, CLASSES, size=(BATCH, STEPS))
Y[:3, 1:], Y[-1] = 0, 0
KERNEL, MATRICES = RANDOM.normal(size=(3, CLASSES)), RANDOM.normal(size=(2, CLASSES, 3))


def each(y: Any, p: Any) -> Any:
    """Returns one loss for each token."""
    return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def mask(y: Any) -> Any:
    return tf.cast(y != 0, tf.float64)


def hot(y: Any) -> Any:
    return tf.one_hot(tf.cast(y, tf.int32), CLASSES, dtype=tf.float64)


def masked(y: Any, p: Any) -> Any:
    return tf.reduce_sum(each(y, p) * mask(y)) / tf.reduce_sum(mask(y))


def dice(y: Any, p: Any, axis: Any = None) -> Any:
    y, p = hot(y), tf.nn.softmax(p)
    both, sizes = tf.reduce_sum(y * p, axis), tf.reduce_sum(y, axis) + tf.reduce_sum(p, axis)
    return 1 - tf.reduce_mean((2 * both + 1) / (sizes + 1))


def tversky(y: Any, p: Any) -> Any:
    y, p = tf.reshape(hot(y), [-1]), tf.reshape(tf.sigmoid(p), [-1])
    both, missed, false = tf.reduce_sum(y * p), tf.reduce_sum(y * (1 - p)), tf.reduce_sum((1 - y) * p)
    return tf.pow(1 - (both + 1) / (both + 0.7 * missed + 0.3 * false + 1), 0.75)


def correlation(y: Any, p: Any) -> Any:
    a, b = tf.cast(y, p.dtype), tf.reduce_sum(p, axis=-1)
    a, b = a - tf.reduce_mean(a), b - tf.reduce_mean(b)
    return 1 - tf.reduce_sum(a * b) / (tf.norm(a) * tf.sqrt(tf.reduce_sum(b * b)) + 1e-7)


def concordance(y: Any, p: Any) -> Any:
    a, b = tf.cast(y, p.dtype), p[..., 0]
    (mean_a, variance_a), (mean_b, variance_b) = tf.nn.moments(a, [0, 1]), tf.nn.moments(b, [0, 1])
    return 1 - 2 * tf.reduce_mean((a - mean_a) * (b - mean_b)) / (variance_a + variance_b + (mean_a - mean_b) ** 2)


def weights_of_sum_one(y: Any, p: Any) -> Any:
    weights = tf.where(y > 1, 3.0 * tf.ones_like(p[..., 0]), tf.ones(tf.shape(y), p.dtype))
    return tf.reduce_sum(each(y, p) * (weights / tf.reduce_sum(weights)))


def weights_of_classes(y: Any, p: Any) -> Any:
    """The weight of a class is one by its number of tokens in the batch."""
    frequent = tf.reduce_sum(hot(y), axis=[0, 1])
    return tf.reduce_mean(each(y, p) * tf.gather(1 / (frequent / tf.reduce_sum(frequent) + 0.1), tf.cast(y, tf.int32)))


def per_time(y: Any, p: Any) -> Any:
    by_time = tf.transpose(each(y, p) * mask(y)), tf.transpose(mask(y))
    return tf.reduce_mean(tf.math.divide_no_nan(*(tf.reduce_sum(one, axis=1) for one in by_time)))


def stacked(y: Any, p: Any) -> Any:
    left, right = tf.split(p, 2, axis=-1)
    errors = tf.stack([tf.reduce_mean(tf.square(one[:, 1:, 0] - one[:, :-1, 1])) for one in (left, right)])
    return tf.reduce_max(tf.sqrt(errors))


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "mean over a mask": masked,
    "at least one": lambda y, p: tf.reduce_sum(each(y, p) * mask(y)) / tf.maximum(tf.reduce_sum(mask(y)), 1),
    "no division by zero": lambda y, p: tf.math.divide_no_nan(
        tf.reduce_sum(each(y, p) * mask(y)), 1e-9 + tf.norm(mask(y)) ** 2
    ),
    "selected": lambda y, p: tf.reduce_mean(tf.boolean_mask(each(y, p), y != 0)),
    "selected rows": lambda y, p: tf.reduce_mean(tf.boolean_mask(p, y[:, 0] > 1) ** 2),
    "root of a mean": lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(hot(y) - p))),
    "deviation": lambda y, p: tf.math.reduce_std(p - hot(y)),
    "logarithm of a mean": lambda y, p: tf.reduce_mean(p[..., 0]) - tf.math.log(tf.reduce_mean(tf.exp(p[..., 1]))),
    "flooding": lambda y, p: tf.abs(tf.reduce_mean(each(y, p)) - 5.0) + 5.0,
    "dice": dice,
    "dice of classes": functools.partial(dice, axis=[0, 1]),
    "dice and cross-entropy": lambda y, p: dice(y, p) + tf.reduce_mean(each(y, p)),
    "tversky": tversky,
    "correlation": correlation,
    "concordance": concordance,
    "weights of the sum 1": weights_of_sum_one,
    "weights of classes": weights_of_classes,
    "time by time": per_time,
    "stacked": stacked,
    "half of squares": lambda y, p: tf.nn.l2_loss(p * mask(y)[..., None]) / tf.reduce_sum(mask(y)),
    "another loss within": lambda y, p: (
        dice(y, p) + 0.5 * keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, p)
    ),
}
# Their values are linear functions of means over rows, may be sums or means, or have operations that are not known.
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda y, p: 0.1 + 2.0 * tf.reduce_mean(each(y, p)) - tf.reduce_sum(tf.reduce_mean(p, axis=0)),
    "sum": lambda y, p: tf.reduce_sum(each(y, p)) / BATCH,
    "root of a sum": lambda y, p: tf.sqrt(tf.reduce_sum(tf.square(p))),
    "mean and sum": lambda y, p: tf.sqrt(tf.reduce_mean(p**2) + tf.reduce_sum(p**2)),
    "number of rows": lambda y, p: tf.sqrt(tf.reduce_sum(p**2) / tf.cast(tf.shape(p)[0], p.dtype)),
    "pairs of rows": lambda y, p: tf.sqrt(tf.reduce_mean((p[:, None] - p[None]) ** 2)),
    "products of rows": lambda y, p: tf.sqrt(tf.reduce_mean(tf.matmul(p[:, 0], p[:, 0], transpose_b=True) ** 2)),
    "order of rows": lambda y, p: tf.sqrt(tf.reduce_mean(tf.cumsum(p, axis=0) ** 2)),
    "reversed rows": lambda y, p: tf.sqrt(tf.reduce_mean((p - p[::-1]) ** 2)),
    "first row": lambda y, p: tf.sqrt(tf.reduce_mean(p[0] ** 2)),
    "largest": lambda y, p: tf.reduce_mean(p) / tf.reduce_max(p),
    "softmax over rows": lambda y, p: tf.sqrt(tf.reduce_mean(tf.nn.softmax(p, axis=0) ** 2)),
    "random": lambda y, p: tf.sqrt(tf.reduce_mean(p**2)) * tf.random.uniform([], dtype=p.dtype),
    "a condition": lambda y, p: tf.cond(tf.reduce_mean(p) > 0, lambda: masked(y, p), lambda: masked(y, p)),
    "values for each row": lambda y, p: tf.sqrt(tf.reduce_mean(p**2, axis=[1, 2])),
    "places": lambda y, p: tf.sqrt(tf.reduce_mean(tf.cast(tf.where(y[:, 0] > 0), p.dtype) * tf.reduce_mean(p**2))),
    "several matrices": lambda y, p: tf.sqrt(tf.reduce_mean(tf.reduce_sum(tf.matmul(p[:, 0], MATRICES), axis=1) ** 2)),
    "mixed rows": lambda y, p: tf.sqrt(tf.reduce_mean(tf.reduce_sum(tf.reshape(p, [CLASSES, -1]), axis=0) ** 2)),
}


class Loss(keras.losses.Loss):
    """A function as a Loss, which notes whether its value is computed from the sums of all replicas."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function, self.found = function, list[bool]()

    def call(self, y: Any, p: Any) -> Any:
        value = self.function(y, p)
        batch = current_batch()
        self.found.append(batch is not None and value_of_global_batch(value, batch) is not None)
        return value


@functools.cache
def strategy_of(replicas: int) -> tf.distribute.Strategy:
    return tfdist.create_strategy("mirrored", devices=replicas)


def on_replicas(loss: Callable[[Any, Any], Any], rows: int, replicas: int, rule: str = "replica_mean") -> Any:
    """Returns the value and the gradient of a loss for the rows of a batch, which replicas share."""
    strategy = strategy_of(replicas)
    data = tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(BATCH)
    with strategy.scope():
        kernel = tf.Variable(KERNEL)

    def step(x: Any, y: Any) -> Any:
        with global_batch((x, y), StepRule(rule, "the step")) as batch:
            with tf.GradientTape() as tape:
                value = loss(y, tf.matmul(x, kernel))
            (gradient,) = weighted_gradients([tape.gradient(value, kernel)])
            return part_of_global(value, batch), gradient

    @tf.function
    def run(iterator: Any) -> Any:
        return strategy.run(step, args=next(iterator))

    results = run(iter(strategy.experimental_distribute_dataset(data)))
    return tuple(strategy.reduce("SUM", result, axis=None) for result in results)


# With 5 rows, the fourth replica has none.
@pytest.mark.parametrize(
    ("rows", "replicas"),
    [pytest.param(8, 2, marks=pytest.mark.full), pytest.param(7, 3, marks=pytest.mark.full), (5, 4)],
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_sums_has_the_value_and_the_gradient_of_one_device(name, rows, replicas):
    loss = Loss(FUNCTIONS[name])
    value, gradient = on_replicas(loss, rows, replicas)
    assert set(loss.found) == {True}
    kernel = tf.Variable(KERNEL)
    with tf.GradientTape() as tape:
        expected = FUNCTIONS[name](tf.constant(Y[:rows]), tf.matmul(X[:rows], kernel))
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, tape.gradient(expected, kernel), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_stay_those_of_the_replica(name):
    loss = Loss(OTHERS[name])
    on_replicas(loss, BATCH, 2)
    assert set(loss.found) == {False}


@pytest.mark.parametrize("rule", ["replica_mean", "global_sum"])
def test_a_function_is_not_changed_where_the_program_divides_for_all_replicas(rule):
    found = []

    def noted(y: Any, p: Any) -> Any:
        value, batch = masked(y, p), current_batch()
        assert batch is not None
        found.append(value_of_global_batch(value, batch) is not None)
        return value

    on_replicas(noted, BATCH, 2, rule)
    assert set(found) == {rule == "replica_mean"}


def rows_one_by_one(y: Any, p: Any) -> Any:
    """Calls a loss for each row: the first axis of what it gets is not that of rows."""
    one = Loss(masked)
    return tf.add_n([one(*pair) for pair in zip(tf.unstack(y), tf.unstack(p), strict=True)]) / y.shape[0]


@pytest.mark.parametrize("form", ["unstack", "map_fn", "vectorized_map"])
def test_a_loss_that_is_called_for_each_row_stays_that_of_the_row(form):
    one = Loss(masked)
    forms = {
        "unstack": rows_one_by_one,
        "map_fn": lambda y, p: tf.reduce_mean(tf.map_fn(lambda a: one(*a), (y, p), fn_output_signature=tf.float64)),
        "vectorized_map": lambda y, p: tf.reduce_mean(tf.vectorized_map(lambda a: one(*a), (y, p))),
    }
    results = []
    for strategy in (tf.distribute.get_strategy(), strategy_of(2)):
        model = compiled(strategy, forms[form])
        # Each row has another number of tokens, so that a mean over two rows is not the mean of theirs.
        labels = np.where(np.arange(STEPS) == 0, 1, Y)
        data = tf.data.Dataset.from_tensor_slices((X, labels)).batch(BATCH, drop_remainder=True)
        model.fit(data, epochs=2, verbose=0)
        results.append(model.get_weights())
    tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), *results)


def compiled(strategy: Any, loss: Any, *, metrics: Any = None, masks: bool = False) -> Any:
    keras.utils.set_random_seed(2)
    with strategy.scope():
        inputs = keras.Input([STEPS, 3])
        x = keras.layers.Masking()(inputs) if masks else inputs
        model = keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Dense(6, activation="tanh")(x)))
        loss = loss() if isinstance(loss, type) else loss
        model.compile(keras.optimizers.SGD(0.3, momentum=0.9), loss, metrics=metrics)
    return model


def deviation(y: Any, p: Any) -> Any:
    return tf.math.reduce_std(p - hot(y))


class Total(keras.losses.Loss):
    """A Loss whose reduction has nothing to add up: its value is a scalar."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def call(self, y: Any, p: Any) -> Any:
        return masked(y, p)


CASES: dict[str, dict[str, Any]] = {
    "loss and metrics": {"loss": masked, "metrics": [dice, masked, deviation]},
    "a masked layer": {"loss": masked, "masks": True},
    "reduction sum": {"loss": Total},
    "weights of rows": {"loss": masked, "weighted": True},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("whole", [False, True], ids=["uneven", "known rows"])
def test_fit_and_evaluate_have_the_numbers_of_one_device(name, whole):
    options, rows = dict(CASES[name]), 3 * BATCH + 5
    is_weighted = options.pop("weighted", False)
    if is_weighted and not KERAS_3:
        pytest.skip("Keras 2 has no weights for a scalar")
    x, y = RANDOM.normal(size=(rows, STEPS, 3)), RANDOM.integers(0, CLASSES, size=(rows, STEPS))
    x[:4, 2:], y[:4, 2:] = 0.0, 0
    arrays = (x, y, RANDOM.uniform(size=rows)) if is_weighted else (x, y)
    data = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH, drop_remainder=whole)
    results = []
    for strategy in (tf.distribute.get_strategy(), strategy_of(4)):
        model = compiled(strategy, **options)
        history, evaluated = model.fit(data, epochs=2, verbose=0), model.evaluate(data, verbose=0)
        results.append((history.history, evaluated, model.get_weights()))
    # Until Keras 3.12, the mean over unmasked steps has a divisor that is larger by 1e-7.
    bound = 1e-6 if KERAS_3 and options.get("masks") and keras_in_use().release < (3, 12) else 1e-10
    tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=bound, atol=1e-12), *results)
