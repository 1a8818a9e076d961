"""Between meetings readers see the average, training goes on with own values, and snapshots keep the own values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint.fits.interrupted import Interrupt, InterruptionError
from tfdist.allreduce import FP16, AllReduceOptions, ErrorFeedback
from tfdist.averaging import ElasticAverage, LocalSGD, Nesterov
from tfdist.checkpoint import AutoResume
from tfdist.keras_compat.optimizers.base import held_variable

keras = tf.keras
ROWS, BATCH = 88, 16


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def architecture() -> Any:
    layers = keras.layers
    return keras.Sequential([layers.Input((8,)), layers.Dense(6, "tanh"), layers.BatchNormalization(), layers.Dense(1)])


def make(strategy: Any, *, momentum: float = 0.5, **options: Any) -> Any:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = architecture()
        optimizer = LocalSGD(keras.optimizers.SGD(0.05, momentum=momentum), **{"every": 4, **options})
        model.compile(optimizer, "mse", metrics=["mae"])
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 3, **options: Any) -> dict[str, list[float]]:
    return model.fit(*data(), batch_size=BATCH, epochs=epochs, verbose=0, callbacks=list(callbacks), **options).history


def own(model: Any) -> list[np.ndarray]:
    """Returns the values of all replicas, of weights, slots and statistics."""
    hook = model.optimizer._tfdist_hook
    with hook.own():
        variables = [*hook.meeting.weights, *hook.meeting.others]
        return [one.numpy() for v in variables for one in model.distribute_strategy.experimental_local_results(v)]


class Reads(keras.callbacks.Callback):
    """Keeps what a callback sees after each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[np.ndarray]] = []
        self.components: list[list[np.ndarray]] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seen.append([np.array(one) for one in self.model.get_weights()])
        weights = self.model.optimizer._tfdist_hook.meeting.weights
        results = self.model.distribute_strategy.experimental_local_results
        self.components.append([one.numpy() for v in weights for one in results(v)])


RULES = {
    "average": {},
    "nesterov": {"outer": Nesterov()},
    "elastic": {"outer": ElasticAverage(rate=0.3), "average": ["weights"]},
    "overlap": {"overlap": True, "average": ["weights", "statistics"]},
    "overlap, compressed": {
        "overlap": True,
        "average": ["weights", "statistics"],
        "all_reduce": AllReduceOptions(compression=ErrorFeedback(FP16())),
    },
}


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "rule",
    [
        *(pytest.param(rule, marks=FULL) for rule in ("average", "nesterov", "overlap", "overlap, compressed")),
        "elastic",
    ],
)
def test_reading_does_not_change_the_training(strategy: Any, rule: str) -> None:
    plain, read = make(strategy, **RULES[rule]), make(strategy, **RULES[rule])
    fit(plain)
    reads = Reads()
    fit(read, reads, validation_data=data())
    read.evaluate(*data(), verbose=0)
    read.predict(data()[0], verbose=0)
    for one, other in zip(own(plain), own(read), strict=True):
        np.testing.assert_array_equal(one, other)
    # Six steps in an epoch: two steps after a meeting the replicas differ, but a callback sees equal weights.
    assert any((one != other).any() for one, other in zip(own(read)[::2], own(read)[1::2], strict=True))
    for one, other in zip(reads.components[0][::2], reads.components[0][1::2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_seen_after_fit_is_the_average_and_training_goes_on_with_the_own_values(strategy: Any) -> None:
    in_one, in_two = make(strategy), make(strategy)
    fit(in_one, epochs=2, shuffle=False)
    fit(in_two, shuffle=False, epochs=1)
    values = own(in_two)
    shares = [3 / 6, 3 / 6]
    for number, variable in enumerate(in_two.optimizer._tfdist_hook.meeting.weights):
        mean = sum(share * value for share, value in zip(shares, values[2 * number : 2 * number + 2], strict=True))
        np.testing.assert_allclose(variable.numpy(), mean, rtol=0, atol=1e-6)
    fit(in_two, shuffle=False, epochs=1)
    for one, other in zip(own(in_one), own(in_two), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seen", ["average", pytest.param("chief", marks=FULL)])
# All methods are wrapped in the same way.
@pytest.mark.parametrize(
    "method",
    ["evaluate", "predict_on_batch", *(pytest.param(one, marks=FULL) for one in ("predict", "test_on_batch"))],
)
def test_evaluation_and_prediction_are_those_of_what_is_seen(strategy: Any, seen: str, method: str) -> None:
    def result(one: Any) -> Any:
        rows = (x, y) if method in ("evaluate", "test_on_batch") else (x,)
        return getattr(one, method)(*rows, **({} if "batch" in method else {"batch_size": BATCH, "verbose": 0}))

    x, y = (values[:BATCH] for values in data())
    model = make(strategy, seen=seen)
    fit(model, epochs=1)
    # After fit the model shows what is seen, and after this step each replica has its own values.
    model.train_on_batch(x, y)
    found = result(model)
    with model.optimizer._tfdist_hook.own():
        values = [
            [one.numpy() for one in strategy.experimental_local_results(held_variable(weight))]
            for weight in model.weights
        ]
    assert any((first != second).any() for first, second in values)
    plain = architecture()
    plain.compile("sgd", "mse", metrics=["mae"])
    plain.set_weights([first if seen == "chief" else (first + second) / 2 for first, second in values])
    np.testing.assert_allclose(found, result(plain), rtol=0, atol=1e-5)


def test_chief_shows_the_first_replica(strategy: Any) -> None:
    model = make(strategy, seen="chief", average=["weights"])
    fit(model, epochs=1)
    firsts = own(model)[::2]
    for variable, first in zip(model.optimizer._tfdist_hook.meeting.weights, firsts, strict=True):
        for one in strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(one.numpy(), first)


@pytest.mark.parametrize(
    ("rule", "at"),
    [
        ("nesterov", [{"train": 7}]),
        pytest.param("overlap, compressed", [{"train": 7}], marks=FULL),
        pytest.param("overlap", [{"train": 7}], marks=FULL),
        pytest.param("average", [{"train": 3}, {"train": 9}], marks=FULL),
        pytest.param("elastic", [{"train": 9}], marks=FULL),
        pytest.param("nesterov", [{"epoch": 1}], marks=FULL),
    ],
)
def test_an_interrupted_fit_ends_with_the_same_bits(strategy: Any, tmp_path: Path, rule: str, at: list) -> None:
    expected = make(strategy, **RULES[rule])
    history = fit(expected)
    for interruption in at:
        with pytest.raises(InterruptionError):
            fit(make(strategy, **RULES[rule]), Interrupt(**interruption), AutoResume(str(tmp_path), every_steps=2))
    found = make(strategy, **RULES[rule])
    assert fit(found, AutoResume(str(tmp_path), every_steps=2)) == history
    for one, other in zip(own(expected), own(found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_train_on_batch_begins_with_the_own_values(strategy: Any) -> None:
    model = make(strategy, every=1000, momentum=0.0)
    fit(model, epochs=1)
    before = own(model)
    assert (before[0] != before[1]).any()
    model.optimizer.learning_rate = 0.0
    model.train_on_batch(*(one[:BATCH] for one in data()))
    weights = 2 * len(model.trainable_variables)
    for one, other in zip(own(model)[:weights], before[:weights], strict=True):
        np.testing.assert_array_equal(one, other)


def test_saving_writes_the_average(strategy: Any, tmp_path: Path) -> None:
    model = make(strategy)
    fit(model, epochs=1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
