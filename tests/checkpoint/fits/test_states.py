"""Interrupted fits keep the state of models, callbacks and options."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.checkpoint.fits.interrupted import (
    BATCH,
    EPOCHS,
    Interrupt,
    InterruptionError,
    check,
    data,
    fit,
    results,
)
from tfdist.checkpoint import AutoResume, fits
from tfdist.keras_compat import keras_in_use

keras = tf.keras


@pytest.mark.full
def test_an_interruption_of_the_validation(strategy, tmp_path):
    x, y = data()
    options = {"validation_data": (x[:32], y[:32])}
    check(strategy, tmp_path / "run", at=[{"test": 2}, {"test": 3}], resume={"every_steps": 1}, **options)


@pytest.mark.full
@pytest.mark.parametrize("use_ema", [False, True])
def test_an_interruption_of_what_ends_the_training(strategy, use_ema, tmp_path):
    # The moving averages replace the weights before on_train_end, EarlyStopping restores the best weights in it.
    def callbacks() -> list[Any]:
        return [keras.callbacks.EarlyStopping(monitor="loss", mode="max", patience=9, restore_best_weights=True)]

    options = {"use_ema": use_ema, "extra": callbacks, "resume": {"every_steps": 7}}
    check(strategy, tmp_path / "run", at=[{"end": 1}, {"end": 1}], **options)


class StopAfter(keras.callbacks.Callback):
    """Ends a fit within an epoch."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.made = steps, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.made += 1
        self.model.stop_training = self.made == self.steps


@pytest.mark.parametrize(
    "at", [[{"epoch": 2}], *(pytest.param(at, marks=pytest.mark.full) for at in ([{"end": 1}], [{"test": 3}]))]
)
def test_a_fit_that_a_callback_ends_within_an_epoch_makes_the_end_of_this_epoch(strategy, at, tmp_path):
    x, y = data()
    options = {"validation_data": (x[:32], y[:32]), "extra": lambda: [StopAfter(10)]}
    check(strategy, tmp_path / "run", at=at, resume={"every_steps": 1}, **options)


class Given(keras.callbacks.Callback):
    """Has arrays that the program gives to it, and notes at the beginning how long the training is."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows, self.names, self.seen = rows, np.array(["cat", "horse"]), np.zeros([2])

    def on_train_begin(self, logs: Any = None) -> None:
        self.total = self.params["epochs"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen[1] += 1


def test_a_new_start_gives_callbacks_what_has_not_changed_since_they_began(tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=9), Given(np.zeros([1000])), AutoResume(directory, every_steps=3), epochs=2)
    given = Given(np.ones([1000]))
    fit(strategy, given, AutoResume(directory, every_steps=3), epochs=3)
    assert given.rows.mean() == 1.0
    assert given.total == 3
    assert given.names.tolist() == ["cat", "horse"]
    assert given.seen.tolist() == [0.0, 21.0]


def test_a_start_with_fewer_epochs_than_are_complete_keeps_what_callbacks_contain(tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    rows = np.zeros([10])
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=17), Given(rows), AutoResume(directory, every_steps=1), epochs=4)
    fit(strategy, Given(rows), AutoResume(directory, every_steps=1), epochs=2)
    # As in a new process.
    fits._ended.clear()
    given = Given(rows)
    fit(strategy, given, AutoResume(directory, every_steps=1), epochs=4)
    assert given.seen.tolist() == [0.0, 28.0]


def test_a_fit_that_was_interrupted_while_tensorboard_traced_it(tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")

    def callbacks() -> list[Any]:
        return [keras.callbacks.TensorBoard(str(tmp_path / "logs"), profile_batch=(2, 6))]

    _, expected = fit(strategy, epochs=2)
    interrupted = callbacks()
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=5), *interrupted, AutoResume(directory, every_steps=1), epochs=2)
    # The end of the process ends the trace.
    interrupted[0]._stop_trace()
    _, found = fit(strategy, *callbacks(), AutoResume(directory), epochs=2)
    assert found == expected


@pytest.mark.parametrize("name", [None, "one_device"])
def test_a_metric_that_is_added_in_the_middle_of_an_epoch_takes_no_other_values(name, tmp_path, caplog):
    strategy = tf.distribute.get_strategy() if name is None else tfdist.create_strategy(name)
    directory = str(tmp_path / "run")
    _, expected = fit(strategy, epochs=2)
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=9), AutoResume(directory, every_steps=1), epochs=2)
    compiled = {"metrics": ["mse", "mae"]}
    _, found = fit(strategy, AutoResume(directory), epochs=2, compiled=compiled)
    assert {key: found["history"][key] for key in ("loss", "mae")} == expected["history"]
    assert len(found["history"]["mse"]) == 1
    assert "the snapshot has no values for the metrics mse, which begin anew in this epoch" in caplog.text


@pytest.mark.full
def test_several_steps_for_each_execution(strategy, tmp_path):
    compiled = {"steps_per_execution": 2}
    check(strategy, tmp_path / "run", at=[{"train": 3}, {"train": 4}], compiled=compiled)


@pytest.mark.full
@pytest.mark.parametrize(
    "at",
    [
        [{"train": 7}],
        *(pytest.param(at, marks=pytest.mark.full) for at in ([{"train": 8}], [{"train": 14}, {"train": 1}])),
    ],
)
def test_a_learning_rate_that_callbacks_set_at_each_epoch(strategy, at, tmp_path):
    def callbacks() -> list[Any]:
        return [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.7, min_delta=1.0),
        ]

    check(strategy, tmp_path / "run", at=at, extra=callbacks, resume={"every_steps": 7})


@pytest.mark.full
def test_the_rows_of_a_csv_logger(tmp_path):
    strategy, rows = tfdist.create_strategy("one_device"), []
    for name, at in (("expected", []), ("found", [{"train": 9}, {"train": 9}])):
        path = tmp_path / f"{name}.csv"
        check(
            strategy,
            tmp_path / name,
            at=at,
            extra=lambda path=path: [keras.callbacks.CSVLogger(str(path))],
            resume={"every_steps": 2},
        )
        with path.open() as file:
            rows.append(list(csv.DictReader(file)))
    assert rows[0] == rows[1]
    assert len(rows[0]) == EPOCHS


def test_backup_and_restore_beside_it_is_refused(tmp_path):
    other = keras.callbacks.BackupAndRestore(str(tmp_path / "other"))
    with pytest.raises(ValueError, match="expected no BackupAndRestore beside AutoResume"):
        fit(tfdist.create_strategy("one_device"), other, AutoResume(str(tmp_path / "run")))


def test_a_second_auto_resume_is_refused(tmp_path):
    both = [AutoResume(str(tmp_path / name)) for name in ("run", "other")]
    with pytest.raises(ValueError, match="expected one AutoResume in the callbacks of a fit, received several"):
        fit(tfdist.create_strategy("one_device"), *both)


def test_a_model_that_is_built_in_its_first_step(strategy, tmp_path):
    def train(*callbacks: Any) -> dict[str, Any]:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.01), "mse")
        x, y = data()
        return results(model, model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0, callbacks=list(callbacks)))

    expected, directory = train(), str(tmp_path / "run")
    with pytest.raises(InterruptionError):
        train(Interrupt(train=9), AutoResume(directory, every_steps=3))
    assert train(AutoResume(directory, every_steps=3)) == expected
    fits._ended.clear()
    if keras_in_use().is_keras3:
        assert train(AutoResume(directory, every_steps=3)) == expected
    else:
        with pytest.raises(ValueError, match="expected a model with variables, whose training"):
            train(AutoResume(directory, every_steps=3))


@pytest.mark.full
def test_a_model_that_runs_eagerly(tmp_path):
    options = {"compiled": {"run_eagerly": True}}
    check(tfdist.create_strategy("one_device"), tmp_path / "run", at=[{"train": 5}, {"train": 9}], **options)
