"""Records reach other workers through the mesh's fields, and time counts on without new records."""

from __future__ import annotations

import os

import pytest

from tfdist.watch import record
from tfdist.watch.datagram import MAX_BYTES, Datagram
from tfdist.watch.mesh import WorkerState
from tfdist.watch.phases import EVALUATION, OUTSIDE, SAVING, TRAINING
from tfdist.watch.record import Received, Record
from tfdist.watch.standing import Standing

OWN = Standing(worker=0, phase=TRAINING, seconds=3.0, limit=60.0, step=5)


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(record, "time", clock)
    return clock


def state(given: Record, *, age_seconds: float = 0.1) -> WorkerState:
    return WorkerState(worker=1, fields={"other": 1, **given.to_fields()}, age_seconds=age_seconds)


def test_a_record_fits_in_a_datagram_with_room_for_others():
    given = Record(phase="first batch", seconds=12345.67, at="x" * 120, data_thread="y" * 120, share_batch=0.333)
    data = Datagram(token=1, worker=1, number=1, fields=given.to_fields()).to_bytes()
    assert len(data) < MAX_BYTES - 200


def test_a_standing_has_what_the_worker_published(clock):
    given = Record(phase=SAVING, seconds=2.0, limit=9.0, step=4, waits="sum", at="a.py:1 in f", machine="other")
    found, known = Received(["a:1", "b:2"], longest_limit=1800.0).standing(1, state(given), own=OWN)
    assert known == given
    assert (found.worker, found.phase, found.limit, found.step) == (1, SAVING, 9.0, 4)
    assert (found.waits, found.at) == ("sum", "a.py:1 in f")
    assert (found.seconds, found.address, found.pid, found.state) == (2.0, "b:2", os.getpid(), "")


def test_seconds_count_on_while_the_record_stays_the_same(clock):
    received = Received(["a:1", "b:2"], longest_limit=1800.0)
    outside = state(Record(phase=OUTSIDE, seconds=0.0, step=4))
    received.standing(1, outside, own=OWN)
    clock.now += 50.0
    assert received.standing(1, outside, own=OWN)[0].seconds == 50.0
    assert received.standing(1, state(Record(phase=OUTSIDE, step=5)), own=OWN)[0].seconds == 0.0


def test_each_step_of_an_evaluation_counts_anew(clock):
    received = Received(["a:1", "b:2"], longest_limit=1800.0)
    for number in range(10):
        clock.now += 10.0
        step = Record(phase=EVALUATION, seconds=0.2, step=4, number=number)
        assert received.standing(1, state(step), own=OWN)[0].seconds == pytest.approx(0.2)
    # Such as after a pause of the process, which begins to count again in the same step.
    clock.now += 40.0
    assert received.standing(1, state(Record(phase=EVALUATION, seconds=40.2, step=4, number=9)), own=OWN)[
        0
    ].seconds == pytest.approx(40.2)
    clock.now += 10.0
    again = state(Record(phase=EVALUATION, seconds=1.0, step=4, number=9))
    assert received.standing(1, again, own=OWN)[0].seconds == pytest.approx(1.0)


def test_a_worker_without_record_has_the_longest_limit_and_is_silent_since_the_beginning(clock):
    received = Received(["a:1", "b:2"], longest_limit=1800.0)
    clock.now += 30.0
    found, known = received.standing(1, None, own=OWN)
    assert known is None
    assert (found.seconds, found.limit, found.silent_seconds, found.is_heard) == (3.0, 1800.0, 30.0, False)


def test_a_worker_whose_datagrams_cease_before_its_first_record_is_silent(clock):
    received = Received(["a:1", "b:2"], longest_limit=1800.0)
    clock.now += 30.0
    for age in (0.1, 9.0):
        quiet = WorkerState(worker=1, fields={"other": 1}, age_seconds=age)
        found, known = received.standing(1, quiet, own=OWN)
        assert known is None
        assert (found.silent_seconds, found.is_heard) == (age, True)


def test_the_state_of_a_silent_process_on_this_machine_is_read(clock):
    received = Received(["a:1", "b:2"], longest_limit=1800.0)
    assert received.standing(1, state(Record(), age_seconds=6.0), own=OWN)[0].state in ("R", "S")
    assert received.standing(1, state(Record(), age_seconds=0.1), own=OWN)[0].state == ""
