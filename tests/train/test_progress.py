"""Lines that say how far a training is, where no progress bar can be shown."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.train import progress
from tfdist.train.progress import ProgressLines, progress_line, verbosity


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    result = Clock()
    monkeypatch.setattr(progress, "time", result)
    return result


class Loss:
    """A loss that counts how often it is read, as one of an accelerator is, for which reading waits."""

    reads = 0

    def __array__(self, dtype=None, copy=None):
        Loss.reads += 1
        return np.array(0.5)


def test_there_is_a_line_every_few_seconds_and_the_loss_is_read_for_it_alone(clock, capsys):
    lines = ProgressLines(steps=40, steps_per_epoch=20)
    Loss.reads = 0
    for epoch in range(2):
        lines.on_epoch_begin(epoch)
        for batch in range(20):
            lines.on_train_batch_end(batch, {"loss": Loss()})
            clock.now += 1.0
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == [
        "step 6/40, loss 0.5000, 1000 ms a step, ETA 0:00:34",
        "step 11/40, loss 0.5000, 1000 ms a step, ETA 0:00:29",
    ]
    assert len(shown) == Loss.reads == 7


def test_a_training_that_goes_on_counts_the_steps_before_but_not_their_time(clock, capsys):
    lines = ProgressLines(steps=1000, steps_per_epoch=100)
    lines.on_epoch_begin(5)
    lines.on_train_batch_end(49, {})
    clock.now += 10.0
    lines.on_train_batch_end(59, {})
    assert capsys.readouterr().out == "step 560/1000, 1000 ms a step, ETA 0:07:20\n"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(1.5, "1500 ms a step, ETA 4:10:00"), (0.0123, "12.3 ms a step, ETA 0:02:03")]
)
def test_times_are_readable(seconds, shown):
    line = progress_line(step=1, steps=10_001, loss=None, step_seconds=seconds)
    assert line == f"step 1/10001, {shown}"


@pytest.mark.parametrize(
    ("chief", "is_terminal", "is_live", "verbose"),
    [(True, True, False, 1), (True, False, True, 1), (True, False, False, 2), (False, True, True, 0)],
)
def test_only_the_chief_shows_progress_and_a_bar_needs_a_terminal(chief, is_terminal, is_live, verbose):
    assert verbosity(chief=chief, is_terminal=is_terminal, is_live=is_live) == verbose


def test_lines_are_printed_in_a_real_fit(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    model = keras().Sequential([keras().layers.Input([2]), keras().layers.Dense(1)])
    model.compile("sgd", "mse")
    lines = ProgressLines(steps=8, steps_per_epoch=4)
    model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=2, epochs=2, verbose=0, callbacks=[lines])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 7
    assert re.fullmatch(r"step 8/8, loss \d+\.\d{4}, \S+ ms a step, ETA 0:00:00", shown[-1])
