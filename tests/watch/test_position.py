"""Position knows the phase of each step, and the usual duration of steps without traces."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from tfdist.watch import Watch, position
from tfdist.watch.options import WatchOptions
from tfdist.watch.phases import (
    CALLBACKS,
    EVALUATION,
    FIRST_BATCH,
    OUTSIDE,
    PREDICTION,
    SAVING,
    TRACING,
    TRAINING,
    Limits,
)
from tfdist.watch.position import Position


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(position, "time", clock)
    return clock


def make_step(at: Position, clock: Clock, seconds: float, *, kind: str = TRAINING, batch: int = 0) -> str:
    at.begin_step(kind, batch)
    phase = at.where().phase
    clock.now += seconds
    at.end_step()
    return phase


def test_phases_of_a_fit_with_validation(clock):
    at = Position()
    seen = [at.where().phase]
    at.begin_fit()
    for epoch in range(2):
        at.begin_epoch(epoch)
        seen += [make_step(at, clock, 1.0, batch=batch) for batch in range(2)]
        seen.append(at.where().phase)
        at.begin_data()
        seen += [make_step(at, clock, 1.0, kind=EVALUATION) for _ in range(2)]
        at.enter(SAVING)
        seen.append(at.where().phase)
    first = [TRACING, TRAINING, CALLBACKS, TRACING, EVALUATION, SAVING]
    later = [FIRST_BATCH, TRAINING, CALLBACKS, FIRST_BATCH, EVALUATION, SAVING]
    assert seen == [OUTSIDE, *first, *later]
    assert (at.where().step, at.where().epoch, at.where().batch) == (5, 2, 3)


def test_the_usual_duration_is_that_of_steps_without_trace_and_without_first_batches(clock):
    at = Position()
    at.begin_epoch(0)
    make_step(at, clock, 500.0)
    for seconds in (1.0, 2.0, 3.0):
        assert at.where().usual_step_seconds is None
        make_step(at, clock, seconds)
    at.begin_epoch(1)
    make_step(at, clock, 400.0)
    at.begin_step(TRAINING, 1)
    at.mark_traced()
    clock.now += 300.0
    assert at.where().phase == TRACING
    at.end_step()
    make_step(at, clock, 200.0, kind=EVALUATION)
    make_step(at, clock, 200.0, kind=PREDICTION)
    at.begin_step(TRAINING, 2)
    assert (at.where().phase, at.where().usual_seconds) == (TRAINING, 2.0)


def test_a_new_fit_may_trace_again(clock):
    at = Position()
    at.begin_fit()
    at.begin_epoch(0)
    assert [make_step(at, clock, 1.0) for _ in range(2)] == [TRACING, TRAINING]
    at.begin_fit()
    at.begin_epoch(0)
    assert make_step(at, clock, 1.0) == TRACING


def test_seconds_count_from_the_beginning_of_the_phase(clock):
    at = Position()
    at.begin_step(TRAINING, 0)
    clock.now += 7.0
    assert at.where().seconds == 7.0
    at.restart_clock()
    assert at.where().seconds == 0.0


def test_time_in_which_the_process_was_kept_from_running_does_not_count(clock):
    at = Position()
    at.begin_epoch(0)
    make_step(at, clock, 1.0)
    for _ in range(3):
        at.begin_step(TRAINING, 0)
        clock.now += 7.0
        at.skip(4.0)
        assert at.where().seconds == 3.0
        at.skip(1.0)
        assert at.where().seconds == 2.0
        at.end_step()
    assert at.where().usual_step_seconds == 2.0
    at.begin_step(TRAINING, 0)
    clock.now += 1.0
    at.skip(4.0)
    assert at.where().seconds == 0.0
    clock.now += 1.0
    assert at.where().seconds == 1.0
    # A step of which TensorFlow was seen to trace keeps its limit.
    at.mark_traced()
    at.skip(0.5)
    assert (at.where().phase, at.where().seconds) == (TRACING, 0.5)


def test_several_steps_in_one_call_of_keras_are_counted(clock):
    at = Position()
    at.begin_epoch(0)
    for batch in (0, 5):
        at.begin_step(TRAINING, batch)
        at.end_step(5)
    assert (at.where().step, at.where().batch) == (11, 11)


def test_the_limit_of_a_step_is_a_multiple_of_the_usual_duration_with_a_floor():
    limits = Limits(factor=3.0, floor_seconds=10.0, tracing_seconds=99.0, data_seconds=50.0, saving_seconds=70.0)
    assert [limits.of(TRAINING, usual_seconds=usual) for usual in (1.0, 5.0)] == [10.0, 15.0]
    assert limits.of(EVALUATION, usual_seconds=None) == 50.0
    assert limits.of(TRACING) == 99.0
    # A limit is never below that of an ordinary step.
    assert limits.of(TRACING, usual_seconds=40.0) == limits.of(FIRST_BATCH, usual_seconds=40.0) == 120.0
    assert limits.of(SAVING) == limits.of(OUTSIDE) == limits.of(CALLBACKS) == 70.0


@pytest.mark.parametrize("name", ["factor", "floor_seconds", "tracing_seconds", "data_seconds", "saving_seconds"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), "60", True, None])
def test_a_limit_that_is_not_above_zero_is_refused(name, value):
    with pytest.raises(ValueError, match=f"expected {name} above 0, received"):
        Limits(**{name: value})


def test_a_factor_of_one_is_refused():
    with pytest.raises(ValueError, match=r"expected factor above 1, received 1\.0"):
        Limits(factor=1.0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("straggler_factor", "2", "expected straggler_factor above 1, received '2'."),
        ("straggler_factor", 1, "expected straggler_factor above 1, received 1."),
        ("deadline_seconds", "300", "expected deadline_seconds above 0 or None, received '300'."),
    ],
)
def test_an_option_of_the_watch_that_is_no_such_number_is_refused(name, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        WatchOptions(**{name: value})


def test_a_watch_refuses_arguments_of_other_types():
    with pytest.raises(
        ValueError, match=r"expected a strategy of TensorFlow, received 'mirrored'; use tfdist\.create_"
    ):
        Watch("mirrored")
    with pytest.raises(ValueError, match=r"expected options to be a tfdist\.watch\.WatchOptions, received \{'factor'"):
        Watch(tf.distribute.get_strategy(), {"factor": 3.0})
