from __future__ import annotations

import pytest

from tfdist.cluster import Task
from tfdist.launch.policy import CAUSE_SECONDS, cause, first_failure, recorders, unneeded_tasks
from tfdist.launch.result import TaskExit

CHIEF, W0, W1, PS, EVALUATOR = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("ps", 0),
    Task("evaluator", 0),
)


def ended(task: Task, seconds: float, code: int = 0, *, signalled: bool = False) -> TaskExit:
    return TaskExit(task=task, code=code, seconds=seconds, signalled=signalled)


def test_the_earliest_failure_is_the_first_whatever_the_order_in_which_it_was_noticed() -> None:
    first = first_failure([W0, W1], [ended(W0, 1.1, 1), ended(W1, 1.0, 3)])
    assert first is not None
    assert first.task == W1


def test_tasks_that_the_launcher_ended_have_not_failed() -> None:
    assert first_failure([W0, W1], [ended(W0, 1.0, -15, signalled=True)]) is None


def test_workers_and_ps_that_lose_their_coordinator_after_its_success_have_not_failed() -> None:
    tasks = [CHIEF, W0, PS, EVALUATOR]
    assert first_failure(tasks, [ended(CHIEF, 1.0), ended(W0, 1.1, 1), ended(PS, 1.2, 1)]) is None
    assert first_failure(tasks, [ended(W0, 0.9, 1), ended(CHIEF, 1.0)]) is not None
    assert first_failure(tasks, [ended(CHIEF, 1.0), ended(EVALUATOR, 1.1, 1)]) is not None


def test_without_parameter_servers_all_workers_stay_needed() -> None:
    assert unneeded_tasks([CHIEF, W0, W1], [ended(CHIEF, 1.0), ended(W0, 1.0)]) == []


def test_without_parameter_servers_a_worker_may_fail_the_run_after_the_chief_has_ended() -> None:
    assert first_failure([CHIEF, W0], [ended(CHIEF, 1.0), ended(W0, 2.0, 1)]) is not None


def test_after_the_success_of_the_coordinator_first_workers_and_ps_and_then_the_evaluator_are_not_needed() -> None:
    tasks = [CHIEF, W0, PS, EVALUATOR]
    exits = [ended(CHIEF, 1.0)]
    assert unneeded_tasks(tasks, exits) == [W0, PS]
    assert unneeded_tasks(tasks, [*exits, ended(W0, 2.0), ended(PS, 2.0, -15, signalled=True)]) == [EVALUATOR]
    assert unneeded_tasks(tasks, []) == []


def test_an_evaluator_that_is_the_only_task_is_needed() -> None:
    assert unneeded_tasks([EVALUATOR], []) == []


@pytest.mark.parametrize(
    ("code", "tracebacks", "task"),
    [
        (1, {W1: 9.0}, W1),
        (-6, {W0: 9.9, W1: 9.0, CHIEF: 9.5}, W1),
        (1, {W0: 8.0, W1: 9.0}, None),
        (1, {W1: 10.0 - CAUSE_SECONDS - 1.0}, None),
        (1, {}, None),
        (75, {W1: 9.0}, None),
        (-9, {W1: 9.0}, None),
        (-11, {W1: 9.0}, None),
    ],
)
def test_an_exception_shortly_before_the_first_failure_is_its_cause(
    code: int, tracebacks: dict[Task, float], task: Task | None
) -> None:
    assert cause(ended(W0, 10.0, code), tracebacks) == task


def test_how_far_the_training_was_is_told_by_the_tasks_that_record_steps() -> None:
    assert recorders(W1, [W0, W1]) == [W1]
    assert recorders(EVALUATOR, [W0, W1, EVALUATOR]) == [W0, W1]
    assert recorders(PS, [CHIEF, W0, W1, PS]) == [CHIEF]
    assert recorders(W0, [CHIEF, W0, W1]) == [W0]
