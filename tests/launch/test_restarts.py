from __future__ import annotations

import dataclasses

import pytest

from tfdist.cluster import Task
from tfdist.launch.restarts import (
    LONG_SECONDS,
    LONGEST_DELAY_SECONDS,
    Cause,
    Failure,
    Limits,
    Verdict,
    decide,
    delay_seconds,
    fewer_workers,
)

W0, W1 = Task("worker", 0), Task("worker", 1)
MANY = Limits(max_restarts=100, max_preemptions=100)


def crash(at: float = 0.0, *, step: int | None = None, task: Task = W1, ran: float = 1.0, code: int = 1) -> Failure:
    return Failure(task=task, how=f"exit code {code}", code=code, at=at, ran_seconds=ran, step=step)


def request(at: float = 0.0, *, step: int | None = None) -> Failure:
    return crash(at, step=step, code=75)


def test_without_limits_nothing_starts_again() -> None:
    for failure in (crash(step=3), request(step=3)):
        assert decide([failure], Limits()) == Verdict(stop=Cause.NOT_ASKED_FOR)


def test_as_many_crashes_are_restarted_as_the_limit_says() -> None:
    failures = [crash(step=step) for step in (10, 20, 30)]
    limits = Limits(max_restarts=2)
    assert [decide(failures[:count], limits).reason for count in (1, 2, 3)] == [
        "restart 1 of 2",
        "restart 2 of 2",
        "the limit of 2 restarts is used up",
    ]
    assert decide(failures, limits).stop == Cause.BUDGET


def test_only_failures_within_the_window_count() -> None:
    limits = Limits(max_restarts=1, window_seconds=60.0)
    assert decide([crash(0.0, step=1), crash(61.0, step=2)], limits).reason == "restart 1 of 1 within 60 s"
    stopped = decide([crash(0.0, step=1), crash(60.0, step=2)], limits)
    assert (stopped.stop, stopped.reason) == (Cause.BUDGET, "the limit of 1 restart within 60 s is used up")


def test_crashes_and_requests_for_a_restart_have_limits_of_their_own() -> None:
    limits = Limits(max_restarts=1, max_preemptions=2)
    failures = [request(step=1), crash(step=2), request(step=3)]
    assert decide(failures[:2], limits).reason == "restart 1 of 1"
    assert decide(failures, limits).reason == "restart on request 2 of 2"
    assert decide([*failures, request(step=4)], limits).reason == "the limit of 2 restarts on request is used up"
    assert decide([*failures, crash(step=4)], limits).stop == Cause.BUDGET


@pytest.mark.parametrize("failure", [crash(step=811), request(step=811)])
def test_the_third_failure_at_one_step_of_one_task_ends_the_run(failure: Failure) -> None:
    assert decide([failure] * 2, MANY).stop is None
    assert decide([failure] * 3, MANY) == Verdict(
        stop=Cause.SAME_STEP, reason="step 812 failed three times on worker 1"
    )


@pytest.mark.parametrize(
    "other", [crash(step=812), crash(step=811, task=W0), crash(step=None)], ids=["step", "task", "no step"]
)
def test_another_step_or_task_in_between_begins_the_count_anew(other: Failure) -> None:
    same = crash(step=811)
    for failures in ([other, same, same], [same, other, same], [same, same, other]):
        assert decide(failures, MANY).stop is None


def test_three_failures_before_the_first_step_end_the_run() -> None:
    verdict = decide([crash()] * 3, MANY)
    assert (verdict.stop, verdict.reason) == (
        Cause.NO_STEP,
        "worker 1 failed three times in a row before it recorded a step",
    )


def test_a_program_that_records_no_steps_may_fail_as_often_as_the_limit_says_if_it_runs_long() -> None:
    assert decide([crash(ran=LONG_SECONDS)] * 3, MANY).stop is None
    assert decide([crash(), crash(ran=LONG_SECONDS), crash()], MANY).stop is None


def test_repeated_preemption_before_the_first_step_is_no_defect() -> None:
    assert decide([request()] * 5, MANY).stop is None


def test_the_delay_grows_only_while_no_step_is_made_and_is_bounded() -> None:
    assert delay_seconds([crash(step=1)] * 9) == 0.0
    assert delay_seconds([crash(), crash(), crash(step=4)]) == 0.0
    assert delay_seconds([crash(step=4), crash(), crash(), crash()]) == 2.0
    assert delay_seconds([crash()] * 5000) == LONGEST_DELAY_SECONDS


@pytest.mark.parametrize(
    ("stop", "fewer"),
    [(None, False), (Cause.NOT_ASKED_FOR, True), (Cause.BUDGET, True), (Cause.NO_STEP, True), (Cause.SAME_STEP, False)],
)
def test_an_elastic_run_loses_a_worker_that_is_gone_for_good(stop: Cause | None, fewer: bool) -> None:
    verdict = Verdict(stop=stop)
    assert fewer_workers(verdict, crash(), workers=2, least=1) is fewer
    assert not fewer_workers(verdict, crash(), workers=1, least=1)
    assert not fewer_workers(verdict, request(), workers=2, least=1)
    chief = dataclasses.replace(crash(), task=Task("chief", 0))
    assert not fewer_workers(verdict, chief, workers=2, least=1)
