"""SumDeadline: a sum that a worker takes no part in fails; sums that all take part in are only counted."""

from __future__ import annotations

import json

import pytest

from tests.allreduce.programs.deadline import FEW, MANY, TIMEOUT_SECONDS


@pytest.fixture(scope="module")
def found(module_children, tmp_path_factory):
    """What the first worker of a job has found, whose second worker stops taking part and stays alive."""
    folder = tmp_path_factory.mktemp("deadline")
    launch = ["-m", "tfdist", "launch", "--workers", "2", "--timeout-seconds", "100"]
    module_children.start_command(*launch, "-m", "tests.allreduce.programs.deadline", str(folder)).end()
    return json.loads((folder / "found.json").read_text())


def test_sums_are_counted_when_they_begin_and_when_they_end(found):
    assert found["distributed"] == [[FEW], [FEW]]
    assert found["stock"] == [[FEW], [FEW]]


def test_sums_leave_no_threads_behind(found):
    assert found["many"] == [[MANY], [MANY]]
    assert found["more threads"] <= 4


def test_a_job_that_does_something_else_for_longer_than_the_timeout_is_left_alone(found):
    assert found["after a pause"] == [[FEW], [FEW]]


def test_a_worker_that_takes_no_part_ends_the_others_steps_with_an_error(found):
    assert f"expected every worker to take part in a sum of gradients within {TIMEOUT_SECONDS:g} s" in found["error"]
    assert found["error"].startswith("DeadlineExceededError: ")
    assert TIMEOUT_SECONDS <= found["seconds"] <= TIMEOUT_SECONDS + 5
