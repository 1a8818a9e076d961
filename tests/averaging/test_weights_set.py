"""Weights that a program sets while the average is shown stay on all replicas, and training goes on from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.averaging.test_seen_and_resumed import RULES, data, fit, make, own
from tfdist.averaging import ChocoSGD, Nesterov, averaged
from tfdist.keras_compat import keras_in_use

keras = tf.keras
BATCHES = 6


def weights_of(model: Any) -> list[np.ndarray]:
    return [np.array(one) for one in model.get_weights()]


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "rule", [*(pytest.param(one, marks=FULL) for one in ("average", "elastic", "overlap")), "nesterov"]
)
def test_early_stopping_restores_the_best_weights(strategy: Any, rule: str) -> None:
    model = make(strategy, **RULES[rule])
    kept: list[list[np.ndarray]] = []

    class Keeps(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            kept.append(weights_of(self.model))

    # Every epoch after the first one is worse.
    stops = keras.callbacks.EarlyStopping("epochs", mode="min", patience=2, restore_best_weights=True)

    class Counts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["epochs"] = float(epoch)

    fit(model, Keeps(), Counts(), stops, epochs=5)
    assert len(kept) == 3
    same(weights_of(model), kept[0])
    trained = len(model.trainable_variables)
    values = own(model)[: 2 * trained]
    same(values[::2], values[1::2])


@pytest.mark.parametrize(
    "rule",
    [*(pytest.param(one, marks=FULL) for one in ("average", "nesterov", "overlap, compressed")), "elastic"],
)
def test_training_goes_on_from_loaded_weights(strategy: Any, rule: str, tmp_path: Path) -> None:
    first = make(strategy, **RULES[rule], momentum=0.0)
    fit(first, epochs=1, shuffle=False)
    first.save_weights(tmp_path / "one.weights.h5")
    saved = weights_of(first)
    fit(first, epochs=1, shuffle=False)
    if keras_in_use().is_keras3:
        first.load_weights(tmp_path / "one.weights.h5")
    else:
        # Keras 2 cannot read the metrics of such a file under a MirroredStrategy.
        first.set_weights(saved)
    same(weights_of(first), saved)
    # Its first meeting after the load comes after as many steps as that of `first`, which has made twelve.
    other = make(strategy, **RULES[rule], momentum=0.0)
    other.set_weights(saved)
    if rule != "nesterov":
        # The momentum of the meetings is kept, as that of an optimizer is.
        for model in (first, other):
            fit(model, epochs=2, shuffle=False)
        for one, same_one in zip(weights_of(first), weights_of(other), strict=True):
            np.testing.assert_allclose(one, same_one, rtol=0, atol=1e-6)
        return
    first.optimizer.learning_rate = 0.0
    velocities = [
        one.local().numpy() for of_weight in first.optimizer._tfdist_hook.meeting._outer_slots for one in of_weight
    ]
    fit(first, epochs=1, shuffle=False)
    # One meeting without a change: the weights move by the momentum alone.
    rule_of = Nesterov()
    for place, (value, velocity) in enumerate(zip(first.trainable_variables, velocities, strict=True)):
        moved = rule_of.rate * rule_of.momentum**2 * velocity
        index = [id(one) for one in first.weights].index(id(value))
        np.testing.assert_allclose(value.numpy(), saved[index] - moved, rtol=0, atol=1e-6, err_msg=str(place))


def test_weights_set_in_a_loop_of_ones_own_stay(strategy: Any) -> None:
    model = make(strategy)
    fit(model, epochs=1)
    with averaged(model):
        model.set_weights([one + 1 for one in weights_of(model)])
        wanted = weights_of(model)
    with averaged(model):
        same(weights_of(model), wanted)


@pytest.mark.full
def test_the_estimates_of_choco_begin_again_with_set_weights(strategy: Any) -> None:
    def made() -> Any:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
            optimizer = ChocoSGD(keras.optimizers.SGD(0.05), compression="topk:0.25", consensus_rate=0.4)
            model.compile(optimizer, "mse")
        return model

    first, other = made(), made()
    begin = weights_of(other)
    fit(first, epochs=1, shuffle=False)
    first.set_weights(begin)
    for model in (first, other):
        fit(model, epochs=1, shuffle=False)
    same(weights_of(first), weights_of(other))


@pytest.mark.parametrize(
    "read",
    [pytest.param(lambda model: model.evaluate(*data(), verbose=0), marks=FULL, id="evaluate"), weights_of],
)
def test_a_value_that_is_not_a_number_is_not_taken_for_one_that_was_set(strategy: Any, read: Callable) -> None:
    model = make(strategy, every=1000)
    fit(model, epochs=1)
    values = own(model)
    kernel = model.optimizer._tfdist_hook.meeting.weights[0]
    with model.optimizer._tfdist_hook.own():
        pass
    model.optimizer._tfdist_hook.begin_training()
    strategy.experimental_local_results(kernel)[0].assign(np.full(kernel.shape, np.nan, "float32"))
    read(model)
    found = [one.numpy() for one in strategy.experimental_local_results(kernel)]
    assert np.isnan(found[0]).all()
    same([found[1]], [values[1]])
