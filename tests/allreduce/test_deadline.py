"""SumDeadline: a sum that a worker takes no part in fails; sums that all take part in are only counted."""

from __future__ import annotations

import json
import re

import pytest

from tests.allreduce.programs.deadline import FEW, MANY, TIMEOUT_SECONDS
from tests.processes import WARM_LAUNCH


def run(children, folder, *arguments, workers):
    """Returns what a worker of a job has found, one worker of which stops taking part and stays alive."""
    launch = [*WARM_LAUNCH, "--workers", str(workers), "--timeout-seconds", "280"]
    ended = children.start_command(*launch, "-m", "tests.allreduce.programs.deadline", str(folder), *arguments).end()
    return {**json.loads((folder / "found.json").read_text()), "output": ended.out}


@pytest.fixture(scope="module")
def found(module_children, tmp_path_factory):
    """The findings of worker 0 in a job of three workers, of which worker 1 stops."""
    return run(module_children, tmp_path_factory.mktemp("deadline"), "1", workers=3)


def test_sums_are_counted_when_they_begin_and_when_they_end(found):
    assert found["distributed"] == [[FEW], [FEW]]
    assert found["stock"] == [[FEW], [FEW]]


def test_sums_leave_no_threads_behind(found):
    assert found["many"] == [[MANY], [MANY]]
    # A thread for each sum of a pack would make 4 * MANY. TensorFlow's own pools grow with the load of the machine.
    assert found["more threads"] < MANY / 2


def test_a_job_that_does_something_else_for_longer_than_the_timeout_is_left_alone(found):
    assert found["after a pause"] == [[FEW], [FEW]]


def error_without(absent):
    return (
        f"expected every worker to take part in a sum of gradients within {TIMEOUT_SECONDS:g} s, waited for {absent}; "
        "find out in its log what it does instead, or raise timeout_seconds of AllReduceOptions."
    )


def test_a_worker_that_takes_no_part_ends_the_others_steps_with_an_error_that_names_it(found):
    assert error_without("worker 1") in found["error"]
    assert found["error"].startswith("DeadlineExceededError: ")
    assert TIMEOUT_SECONDS <= found["seconds"] <= TIMEOUT_SECONDS + 5


def test_a_sum_that_waits_is_logged_before_it_fails(found):
    # Worker 2 waits, too; the launcher shows alike lines once.
    line = r"\[workers? 0(, 2)?\] tfdist: a sum of gradients has waited \d s for worker 1\n"
    assert re.search(line, found["output"])


def test_the_worker_that_runs_the_coordination_service_is_named_too(children, tmp_path):
    found = run(children, tmp_path, "0", "short", workers=2)
    assert error_without("worker 0") in found["error"]
