"""judge: which worker is the cause of a stall, from what is known about all workers."""

from __future__ import annotations

from typing import Any

import pytest

from tfdist.cluster.probe import CLOSED, NO_REPLY, NO_ROUTE, REFUSED, SILENT, UNRESOLVED
from tfdist.watch import stall
from tfdist.watch.phases import CALLBACKS, EVALUATION, FIRST_BATCH, OUTSIDE, SAVING, TRACING, TRAINING
from tfdist.watch.stall import judge
from tfdist.watch.standing import SERVES, Standing

LATE = {"seconds": 70.0, "limit": 60.0}


def standing(worker: int, **changes: Any) -> Standing:
    """A worker in a training step, within its limit."""
    return Standing(**{"worker": worker, "phase": TRAINING, "seconds": 1.0, "limit": 60.0, **changes})


UNDECIDED = ["undecided"]


def kinds(*standings: Standing, own: int = 0) -> list[str] | None:
    found = judge(standings, own=own)
    if found is not None and not found.is_decided:
        return UNDECIDED
    return None if found is None else [verdict.kind for verdict in found.verdicts]


def test_a_step_within_its_limit_is_no_stall():
    assert kinds(standing(0), standing(1)) is None


@pytest.mark.parametrize("phase", [TRAINING, EVALUATION, FIRST_BATCH, TRACING, SAVING, CALLBACKS])
def test_one_process_that_exceeds_the_limit_of_its_phase_is_busy(phase):
    assert kinds(standing(0, phase=phase, **LATE)) == [stall.BUSY]


def test_one_process_with_a_thread_in_its_pipeline_waits_for_data():
    assert kinds(standing(0, data_thread="data.py:3 in rows", **LATE)) == [stall.DATA]


def test_outside_of_fit_nothing_is_judged():
    assert kinds(standing(0, phase=OUTSIDE, **LATE), standing(1, **LATE)) is None


@pytest.mark.parametrize("waits", ["batch", "sum"])
@pytest.mark.parametrize("phase", [SAVING, CALLBACKS, TRACING, EVALUATION, OUTSIDE])
def test_a_worker_may_wait_for_one_that_is_within_the_limit_of_its_phase(waits, phase):
    assert kinds(standing(0, waits=waits, **LATE), standing(1, phase=phase, seconds=70.0, limit=1800.0)) is None


@pytest.mark.parametrize("phase", [SAVING, CALLBACKS, OUTSIDE])
def test_a_worker_that_exceeds_the_limit_of_another_phase_is_the_cause(phase):
    both = standing(0, waits="batch", **LATE), standing(1, phase=phase, **LATE)
    assert kinds(*both) == [stall.WAITS, stall.BUSY]
    assert judge(both, own=0).causes == (1,)


def test_a_worker_without_a_batch_waits_for_its_data_if_others_have_one():
    assert kinds(standing(0, waits="batch", **LATE), standing(1, waits="", **LATE)) == [stall.WAITS, stall.DATA]


def test_a_worker_that_alone_does_not_take_part_in_a_sum_is_busy():
    assert kinds(standing(0, waits="sum", **LATE), standing(1, waits="", **LATE)) == [stall.WAITS, stall.BUSY]


def test_workers_that_all_wait_are_a_stall_without_a_cause():
    both = standing(0, waits="sum", **LATE), standing(1, waits="sum", **LATE)
    assert kinds(*both) == [stall.WAITS, stall.WAITS]
    assert judge(both, own=0).causes == (0, 1)


def test_workers_that_all_wait_are_no_stall_while_one_is_within_its_limit():
    assert kinds(standing(0, waits="sum", **LATE), standing(1, waits="sum")) is None


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (SILENT, stall.STOPPED),
        (REFUSED, stall.ENDED),
        (CLOSED, stall.ENDED),
        (NO_REPLY, stall.CUT_OFF),
        (NO_ROUTE, stall.CUT_OFF),
    ],
)
@pytest.mark.parametrize("phase", [TRAINING, TRACING, SAVING])
def test_a_silent_worker_is_told_by_the_reply_of_its_address_whatever_its_phase(reply, kind, phase):
    silent = standing(1, phase=phase, limit=1800.0, silent_seconds=6.0, reply=reply)
    for waits in ("batch", "", None):
        assert kinds(standing(0, waits=waits), silent) == [stall.WAITS, kind]


def test_a_silent_worker_in_state_t_is_stopped_without_a_reply():
    assert kinds(standing(0), standing(1, silent_seconds=6.0, state="T")) == [stall.WAITS, stall.STOPPED]


def test_a_silent_worker_is_not_judged_before_its_address_has_replied():
    assert kinds(standing(0, **LATE), standing(1, silent_seconds=6.0)) == UNDECIDED
    assert kinds(standing(0, **LATE), standing(1, silent_seconds=20.0)) == [stall.WAITS, stall.CUT_OFF]


def test_an_old_record_is_not_judged():
    late = standing(0, waits="batch", **LATE)
    assert kinds(late, standing(1, waits="batch", silent_seconds=3.0, **LATE)) == UNDECIDED
    # A lost datagram of a third worker does not end a stall that is known.
    assert kinds(late, standing(1, waits="", **LATE), standing(2, silent_seconds=1.7)) == UNDECIDED


def test_a_silent_worker_whose_server_answers_has_the_limit_of_its_phase():
    traces = standing(1, phase=TRACING, seconds=70.0, limit=1800.0, silent_seconds=20.0, reply=SERVES)
    assert kinds(standing(0, waits="sum", **LATE), traces) is None
    held = standing(1, silent_seconds=20.0, reply=SERVES, **LATE)
    assert kinds(standing(0, waits="sum", **LATE), held) == [stall.WAITS, stall.HELD]


@pytest.mark.parametrize("reply", [SERVES, UNRESOLVED])
def test_while_this_worker_makes_steps_lost_datagrams_and_names_are_no_stall(reply):
    silent = standing(1, silent_seconds=500.0, reply=reply, **LATE)
    assert kinds(standing(0), silent) is None
    assert kinds(standing(0, waits="sum", **LATE), silent) is not None


def test_a_silent_worker_that_was_between_two_steps_has_the_limit_of_a_step():
    between = {"phase": CALLBACKS, "seconds": 70.0, "limit": 1800.0, "reply": SERVES}
    late = standing(0, waits="batch", **LATE)
    assert kinds(late, standing(1, silent_seconds=70.0, **between)) == [stall.WAITS, stall.HELD]
    assert kinds(late, standing(1, silent_seconds=20.0, **between)) is None
    assert kinds(standing(0, waits="batch"), standing(1, silent_seconds=70.0, **between)) is None


def test_a_silent_worker_whose_last_record_is_of_a_trace_that_has_ended_is_held():
    # Its step is over, since this worker is in a later one.
    trace = {"phase": TRACING, "limit": 1800.0, "reply": SERVES, "silent_seconds": 70.0}
    late = standing(0, waits="batch", step=30, **LATE)
    assert kinds(late, standing(1, step=2, **trace)) == [stall.WAITS, stall.HELD]
    assert kinds(late, standing(1, step=30, **trace)) is None
    assert kinds(late, standing(1, step=2, **{**trace, "silent_seconds": 20.0})) is None


def test_a_worker_that_has_ended_after_fit_is_the_cause_only_if_this_one_is_late():
    gone = standing(1, phase=OUTSIDE, silent_seconds=20.0, reply=REFUSED)
    assert kinds(standing(0, phase=SAVING), gone) is None
    assert kinds(standing(0, waits="batch", **LATE), gone) == [stall.WAITS, stall.ENDED]


@pytest.mark.parametrize("phase", [SAVING, CALLBACKS])
def test_while_this_worker_saves_others_may_end_but_not_be_stopped(phase):
    ended, stopped = (standing(1, silent_seconds=6.0, reply=reply) for reply in (REFUSED, SILENT))
    assert kinds(standing(0, phase=phase), ended) is None
    assert kinds(standing(0, phase=phase, **LATE), ended) == [stall.BUSY, stall.ENDED]
    assert kinds(standing(0, phase=phase), stopped) == [stall.WITHIN, stall.STOPPED]


def test_without_counters_the_worker_that_is_behind_is_the_cause():
    ahead, behind = standing(0, step=9, **LATE), standing(1, step=8, **LATE)
    assert kinds(ahead, behind) == [stall.WAITS, stall.BUSY]
    callbacks = standing(1, step=9, phase=CALLBACKS, **LATE)
    assert kinds(ahead, callbacks) == [stall.WAITS, stall.BUSY]


def test_without_counters_workers_in_the_same_step_are_all_named():
    assert kinds(standing(0, **LATE), standing(1, **LATE)) == [stall.BUSY, stall.BUSY]


def test_without_counters_a_worker_may_wait_for_one_that_saves():
    assert kinds(standing(0, **LATE), standing(1, phase=SAVING, seconds=70.0, limit=1800.0)) is None


def test_a_wait_that_no_counter_shows_is_excused_by_a_worker_that_is_stopped():
    # Such as a sum of metrics: the worker is late, and waits in no sum of gradients.
    late = standing(0, waits="", **LATE)
    assert kinds(late, standing(1, silent_seconds=9.0, reply=SILENT)) == [stall.WAITS, stall.STOPPED]


def test_every_worker_judges_alike():
    standings = [standing(0, waits="batch", **LATE), standing(1, waits="", **LATE), standing(2, waits="batch", **LATE)]
    for own in range(3):
        assert judge(standings, own=own).causes == (1,)
