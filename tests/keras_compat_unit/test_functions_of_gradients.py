"""What a step computes from its gradients is that of the global batch: clipped gradients, own updates, norms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.keras_compat_unit.updates_of_ones_own import (
    WORDS,
    Model,
    accumulated,
    accumulated_and_clipped,
    assigned,
    centralized,
    checked,
    clipped_by_norm,
    clipped_by_value,
    clipped_in_a_function,
    clipped_to_weights,
    clipped_together,
    decayed,
    logged,
    logged_together,
    projected,
    sharpness_aware,
    signs,
    subtracted,
    subtracted_from_rows,
    subtracted_in_a_branch,
    velocity_of_the_step_before,
    with_momentum,
    without_infinities,
)
from tfdist.keras_compat.losses import functions_of_gradients

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
layers = keras.layers
BATCH = 8
FULL = pytest.mark.full
RANDOM = np.random.default_rng(1)
# The last batch has 5 rows, so that one of four replicas has none.
DATA = (RANDOM.normal(size=(21, 3)), RANDOM.integers(0, WORDS, size=(21, 4))), RANDOM.normal(size=(21, 2)) * 3
STEPS = 2


# CI trains with those that take a way of their own.
CORE = (clipped_together, clipped_in_a_function, subtracted_in_a_branch, accumulated, sharpness_aware, logged)
UPDATES = (
    clipped_by_norm,
    clipped_by_value,
    clipped_together,
    clipped_in_a_function,
    clipped_to_weights,
    signs,
    centralized,
    decayed,
    subtracted,
    subtracted_in_a_branch,
    assigned,
    with_momentum,
    accumulated,
    accumulated_and_clipped,
    sharpness_aware,
    projected,
    velocity_of_the_step_before,
    checked,
    subtracted_from_rows,
    without_infinities,
    logged,
    logged_together,
)


class Clipping(keras.optimizers.SGD):
    """An optimizer of one's own that clips what it gets."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = [(tf.clip_by_norm(gradient, 0.3), variable) for gradient, variable in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


@functools.cache
def strategy_of(kind: str, replicas: int) -> tf.distribute.Strategy:
    return tfdist.create_strategy(kind, devices=replicas)


def trained(
    make: Callable[[], Any], strategy: Any, optimizer: Any = None, *, whole: bool = False, **options: Any
) -> Any:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = make()
        model(tf.nest.map_structure(lambda one: one[:2], DATA[0]))
        model.stores = [tf.Variable(tf.zeros_like(one), trainable=False) for one in model.trainable_variables]
        model.count = tf.Variable(0.0, trainable=False, dtype=tf.float64)
        model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.2, momentum=0.9), **options)
    batches = tf.data.Dataset.from_tensor_slices(DATA).batch(BATCH, drop_remainder=whole)
    history = model.fit(batches, epochs=STEPS, verbose=0).history
    # A variable that replicas hold apart has a value for each of them.
    copies = [getattr(getattr(one, "_value", one), "values", None) for one in model.trainable_variables]
    assert all(copies) == isinstance(strategy, tf.distribute.MirroredStrategy)
    for values in filter(None, copies):
        for value in values[1:]:
            np.testing.assert_array_equal(value, values[0])
    return history, model.get_weights()


def compare(own: Any, expected: Any) -> None:
    tf.nest.map_structure(functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12), own, expected)


def one_device(make: Callable[[], Any], **options: Any) -> Any:
    return trained(make, tf.distribute.get_strategy(), **options)


@pytest.mark.parametrize(
    ("update", "divides"),
    [
        pytest.param(update, divides, marks=() if update in CORE and not divides else FULL)
        for update in UPDATES
        for divides in (False, True)
        # Such a program divides the decay too, or it counts once for each replica.
        if update is not decayed or not divides
    ],
    ids=lambda value: {False: "mean", True: "divided"}.get(value) or value.__name__,
)
def test_a_step_has_the_numbers_of_one_device(update, divides):
    make = functools.partial(Model, update, divides=divides)
    compare(trained(make, strategy_of("mirrored", 4)), one_device(make))


@pytest.mark.parametrize(
    "update", [*(pytest.param(one, marks=FULL) for one in (clipped_together, subtracted, accumulated)), sharpness_aware]
)
def test_a_step_on_central_storage_has_the_numbers_of_one_device(update):
    make = functools.partial(Model, update)
    compare(trained(make, strategy_of("central_storage", 2)), one_device(make))


@pytest.mark.parametrize("update", [pytest.param(clipped_together, marks=FULL), with_momentum])
def test_several_steps_in_one_call_have_the_numbers_of_one_device(update):
    make = functools.partial(Model, update)
    compare(trained(make, strategy_of("mirrored", 2), steps_per_execution=2), one_device(make))


def test_an_optimizer_that_clips_clips_the_gradient_of_the_global_batch():
    make = functools.partial(Model, lambda model, gradients, data: model.applied(gradients))
    optimizer = functools.partial(Clipping, 0.2)
    compare(trained(make, strategy_of("mirrored", 4), optimizer), one_device(make, optimizer=optimizer))


def distributed() -> Any:
    return tfdist.optimizers.DistributedOptimizer(keras.optimizers.SGD(0.2))


def test_a_distributed_optimizer_gets_the_clipped_gradient_of_the_global_batch():
    make = functools.partial(Model, clipped_together)
    expected = one_device(make, optimizer=functools.partial(keras.optimizers.SGD, 0.2))
    compare(trained(make, strategy_of("mirrored", 2), distributed), expected)


@pytest.mark.parametrize(
    ("update", "sums"),
    [
        (decayed, 0),
        pytest.param(centralized, 0, marks=FULL),
        (clipped_by_norm, 1),
        pytest.param(sharpness_aware, 1, marks=FULL),
        (projected, 2),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_gradients_are_added_up_once_for_each_call_of_a_tape(monkeypatch, update, sums):
    stock, counted = functions_of_gradients.sum_gradients, []
    monkeypatch.setattr(functions_of_gradients, "sum_gradients", lambda given: counted.append(1) or stock(given))
    trained(functools.partial(Model, update), strategy_of("mirrored", 2))
    # Each replica traces the step, once for whole batches and once for the last one.
    traces = 2 * STEPS
    assert len(counted) % 2 == 0
    assert len(counted) <= sums * traces
    assert bool(counted) == bool(sums)


def scaled_by_rows(model: Any, gradients: Any, data: Any) -> None:
    """A mean of absolute targets is another one on each replica."""
    factor = tf.reduce_mean(tf.abs(data[1]))
    model.applied([tf.clip_by_norm(factor * one, 0.3) for _, one, _ in model.with_weights(gradients)])


def with_noise(model: Any, gradients: Any, data: Any) -> None:
    dense = model.with_weights(gradients)
    model.applied([tf.clip_by_norm(one + tf.random.normal(one.shape, dtype=one.dtype), 0.3) for _, one, _ in dense])


def with_seeded_noise(model: Any, gradients: Any, data: Any) -> None:
    """Keras's seeds are other ones on each replica."""
    dense = model.with_weights(gradients)
    model.applied([tf.clip_by_norm(one + keras.random.normal(one.shape, seed=model.seed), 0.3) for _, one, _ in dense])


def with_noise_of_the_replica(model: Any, gradients: Any, data: Any) -> None:
    replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float64)
    model.applied([tf.clip_by_norm(one * (1 + 0.1 * replica), 0.3) for _, one, _ in model.with_weights(gradients)])


def with_a_limit_of_rows(model: Any, gradients: Any, data: Any) -> None:
    model.count.assign(tf.reduce_max(tf.abs(data[1])))
    model.applied([tf.clip_by_norm(one, 0.1 * model.count) for _, one, _ in model.with_weights(gradients)])


def of_a_function(model: Any, gradients: Any, data: Any) -> None:
    inner = tf.function(lambda given: [tf.convert_to_tensor(one) for one in model.gradients(given)[1]])
    model.applied([tf.clip_by_norm(one, 0.3) for one in inner(data)])


OF_ROWS = (
    pytest.param(scaled_by_rows, marks=FULL),
    pytest.param(with_noise, marks=FULL),
    *((with_seeded_noise,) if hasattr(keras, "random") else ()),
    pytest.param(with_noise_of_the_replica, marks=FULL),
    with_a_limit_of_rows,
    of_a_function,
)


@pytest.mark.parametrize("update", OF_ROWS)
def test_what_depends_on_rows_stays_that_of_the_replica(monkeypatch, update):
    """It is trained with all the same: no replica waits for a sum that others do not make."""

    def no_sum(given: Any) -> Any:
        raise AssertionError("expected no sum of gradients, received one.")

    monkeypatch.setattr(functions_of_gradients, "sum_gradients", no_sum)
    history, _ = trained(functools.partial(Model, update), strategy_of("mirrored", 2))
    assert np.isfinite(history["loss"]).all()


def drawn_by_python(model: Any, gradients: Any, data: Any) -> None:
    model.applied([tf.clip_by_norm(one + np.random.normal(), 0.3) for _, one, _ in model.with_weights(gradients)])


def test_replicas_stay_equal_if_python_has_made_other_steps_of_them():
    history, _ = trained(functools.partial(Model, drawn_by_python), strategy_of("mirrored", 2))
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("update", [clipped_together, without_infinities])
def test_slices_of_known_numbers_have_the_numbers_of_one_device(update):
    make = functools.partial(Model, update)
    compare(trained(make, strategy_of("mirrored", 2), whole=True), one_device(make, whole=True))
