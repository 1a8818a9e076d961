from __future__ import annotations

import os
import types
import zipfile

import numpy as np
import pytest

from tfdist.keras_compat.resume.attributes import plain_state, set_plain_state
from tfdist.keras_compat.version import keras
from tfdist.train import callbacks
from tfdist.train.callbacks import ChiefCheckpoint, StepTimer, StopIfNotFinite, TrainingNotFiniteError


@pytest.fixture
def clock(monkeypatch):
    now = types.SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(callbacks, "time", types.SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def epoch(timer, clock, seconds):
    timer.on_epoch_begin(0)
    for number, duration in enumerate(seconds):
        clock.seconds += duration
        timer.on_train_batch_end(number)


def test_the_timer_does_not_count_the_first_step_of_an_epoch_and_the_time_between_epochs(clock):
    timer = StepTimer()
    assert timer.steps_per_second == 0.0
    epoch(timer, clock, [100.0])
    assert timer.steps_per_second == 0.0
    epoch(timer, clock, [100.0, 0.5, 0.5])
    clock.seconds += 1000.0
    epoch(timer, clock, [50.0, 0.25, 0.25, 0.5])
    assert timer.steps_per_second == 5 / 2.0


def test_a_timer_goes_on_after_an_interruption_without_counting_its_time(clock):
    interrupted, timer = StepTimer(), StepTimer()
    since = plain_state(timer, {}, "")
    epoch(interrupted, clock, [100.0, 0.5, 0.5])
    clock.seconds = 7.0
    # AutoResume restores a callback after the epoch has begun. Another host has another clock.
    timer.on_epoch_begin(1)
    set_plain_state(timer, plain_state(interrupted, {}, "", since=since), {})
    timer.on_train_batch_end(1)
    clock.seconds += 2.0
    timer.on_train_batch_end(2)
    assert timer.steps_per_second == 3 / 3.0


def test_the_checkpoint_is_one_complete_file_after_every_epoch(tmp_path):
    layers = keras().layers
    model = keras().Sequential([layers.Input((2,)), layers.Dense(1)])
    model.compile("adam", "mse")
    path = str(tmp_path / "run" / "checkpoint.keras")
    kept = []

    class Look(keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            assert os.listdir(tmp_path / "run") == ["checkpoint.keras"]
            assert zipfile.ZipFile(path).testzip() is None
            kept.append(keras().models.load_model(path))

    timer = StepTimer()
    model.fit(
        np.ones((8, 2)), np.ones((8, 1)), 2, epochs=2, verbose=0, callbacks=[timer, ChiefCheckpoint(path), Look()]
    )
    assert [int(saved.optimizer.iterations.numpy()) for saved in kept] == [4, 8]
    assert not np.array_equal(kept[0].get_weights()[0], kept[1].get_weights()[0])
    for mine, saved in zip(model.get_weights(), kept[1].get_weights(), strict=True):
        np.testing.assert_array_equal(mine, saved)
    assert timer.steps_per_second > 0


class Log:
    """A log that counts how often its value is read, since each reading waits for an accelerator."""

    def __init__(self, value):
        self._value, self.readings = value, 0

    def __array__(self, dtype=None, copy=None):
        self.readings += 1
        return np.array(self._value, dtype)


def test_the_loss_is_looked_at_after_every_50_steps_and_the_error_names_the_steps():
    guard, log, broken = StopIfNotFinite(), Log(1.0), Log(np.nan)
    guard.on_epoch_begin(1)
    for batch in range(50):
        guard.on_train_batch_end(batch, {"loss": log, "accuracy": broken})
    assert (log.readings, broken.readings) == (1, 0)
    for batch in range(50, 99):
        guard.on_train_batch_end(batch, {"d_loss": broken})
    with pytest.raises(TrainingNotFiniteError, match=r"received nan in a step from 51 to 100 of epoch 2; lower"):
        guard.on_train_batch_end(99, {"d_loss": broken})


def test_an_epoch_that_ends_between_two_looks_is_looked_at_but_not_its_validation():
    guard = StopIfNotFinite()
    guard.on_epoch_begin(0)
    guard.on_train_batch_end(0, {"loss": np.inf})
    guard.on_epoch_end(0, {"loss": 1.0, "val_loss": np.nan})
    guard.on_epoch_begin(1)
    guard.on_train_batch_end(0, {"loss": np.inf})
    with pytest.raises(TrainingNotFiniteError, match=r"expected a finite loss, received inf in step 1 of epoch 2"):
        guard.on_epoch_end(1, {"loss": np.inf})


def test_broken_weights_do_not_replace_a_checkpoint_even_if_the_loss_is_finite(tmp_path):
    layers = keras().layers
    model = keras().Sequential([layers.Input((2,)), layers.Dense(1, name="last")])
    model.compile("sgd", "mse")
    path = str(tmp_path / "checkpoint.keras")

    class Break(keras().callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.get_layer("last").kernel.assign([[np.nan], [1.0]])

    guards = [Break(), StopIfNotFinite(), ChiefCheckpoint(path)]
    with pytest.raises(TrainingNotFiniteError, match=r"received nan or inf in .*last/kernel.* at the end of epoch 2; "):
        model.fit(np.ones((8, 2)), np.ones((8, 1)), 2, epochs=3, verbose=0, callbacks=guards)
    saved = keras().models.load_model(path)
    assert int(saved.optimizer.iterations.numpy()) == 4
    assert np.isfinite(saved.get_weights()[0]).all()
