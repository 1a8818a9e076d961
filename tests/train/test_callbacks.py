from __future__ import annotations

import os
import types
import zipfile

import numpy as np
import pytest

from tfdist.keras_compat.version import keras
from tfdist.train import callbacks
from tfdist.train.callbacks import ChiefCheckpoint, StepTimer


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
