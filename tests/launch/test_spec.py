from __future__ import annotations

import sys
from typing import Any

import pytest

from tfdist.launch.scale import Elastic
from tfdist.launch.spec import LaunchSpec


def names(**options: Any) -> list[str]:
    return [task.name for task in LaunchSpec(command=("x",), **options).tasks]


def test_one_worker_is_the_default() -> None:
    assert names() == ["worker 0"]


def test_every_job_is_planned_with_the_evaluator_outside_the_cluster() -> None:
    spec = LaunchSpec(command=("x",), workers=2, ps=1, chief=True, evaluator=True)
    assert [task.name for task in spec.tasks] == ["chief 0", "worker 0", "worker 1", "ps 0", "evaluator 0"]
    assert "evaluator" not in {task.job for task in spec.cluster_tasks}


def test_parameter_servers_add_a_chief() -> None:
    assert names(ps=1) == ["chief 0", "worker 0", "ps 0"]
    assert LaunchSpec(command=("x",), ps=1).adds_chief
    assert not LaunchSpec(command=("x",), ps=1, chief=True).adds_chief


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (("train.py", "--a"), [sys.executable, "train.py", "--a"]),
        (("-m", "pkg.train"), [sys.executable, "-m", "pkg.train"]),
        (("python", "train.py"), ["python", "train.py"]),
        (("sh", "-c", "x.py"), ["sh", "-c", "x.py"]),
    ],
)
def test_only_modules_and_python_files_are_run_with_this_python(command: tuple[str, ...], argv: list[str]) -> None:
    assert LaunchSpec(command=command).argv == argv


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": ()}, r"expected a command to run, received none; write it after `--`"),
        ({"command": ("-m",)}, r"expected a command to run, received none"),
        ({"workers": -1}, r"expected --workers to be 0 or more, received -1\.$"),
        ({"ps": -2}, r"expected --ps to be 0 or more, received -2\.$"),
        ({"threads_per_task": -1}, r"expected --threads-per-rank to be 0 or more, received -1\.$"),
        ({"workers": 0}, r"expected at least one task, received none; add --workers"),
        ({"workers": 0, "ps": 1}, r"expected at least 1 worker with --ps, received --ps 1 and no workers; add"),
        ({"workers": 1025}, r"expected at most 1024 tasks on one machine, received 1025; lower --workers or --ps\.$"),
        ({"workers": 1023, "ps": 1}, r"expected at most 1024 tasks on one machine, received 1025;"),
        ({"workers": 2_000_000_000}, r"expected at most 1024 tasks on one machine, received 2000000000;"),
        ({"workers": 2_000_000_000, "port_base": 2000}, r"expected at most 1024 tasks on one machine, received 2000"),
        ({"ps": 10**30}, r"expected at most 1024 tasks on one machine, received 1000000000000000000000000000002;"),
        (
            {"grace_seconds": -1.0},
            r"expected --grace-seconds to be a finite number, 0 or more, received -1\.$",
        ),
        (
            {"grace_seconds": float("nan")},
            r"expected --grace-seconds to be a finite number, 0 or more, received nan",
        ),
        (
            {"evaluator_grace_seconds": float("inf")},
            r"expected --evaluator-grace-seconds to be a finite number, 0 or more, received inf",
        ),
        (
            {"timeout_seconds": 0.0},
            r"expected --timeout-seconds to be a finite number, more than 0, received 0\.$",
        ),
        ({"port_base": 0}, r"expected --port-base and the ports after it, .* received 0 for 1 task\.$"),
        (
            {"port_base": 65535, "workers": 2},
            r"expected --port-base and the ports after it, .* 65535 for 2 tasks\.$",
        ),
        (
            {"env": {"TF_CONFIG": "{}"}},
            r"expected --env without TF_CONFIG, which the launcher sets, received TF_CONFIG='{}'\.$",
        ),
        ({"env": {"TFDIST_LAUNCH_ID": "a"}}, r"expected --env without TFDIST_LAUNCH_ID"),
        ({"env": {"TFDIST_ATTEMPT": "1"}}, r"expected --env without TFDIST_ATTEMPT"),
        ({"max_restarts": -1}, r"expected --max-restarts to be 0 or more, received -1\.$"),
        ({"max_preemptions": -1}, r"expected --max-preemptions to be 0 or more, received -1\.$"),
        (
            {"restart_budget_seconds": 5.0},
            r"expected --max-restarts or --max-preemptions with --restart-budget-seconds 5, received neither; add",
        ),
        (
            {"restart_budget_seconds": 0.0, "max_restarts": 1},
            r"expected --restart-budget-seconds to be a finite number, more than 0, received 0\.$",
        ),
        ({"restart_grace_seconds": -1.0}, r"expected --restart-grace-seconds to be a finite number, 0 or more, "),
        ({"standby": True, "command": ("t.py",)}, r"expected --max-restarts with --standby, received none; add"),
        (
            {"standby": True, "max_restarts": 1, "command": ("python", "t.py")},
            r"expected a Python file or `-m MODULE` as the command with --standby, received 'python'; write `-- train",
        ),
    ],
)
def test_values_out_of_range_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchSpec(**{"command": ("x",), **options})


def test_as_many_tasks_as_one_machine_can_have_are_accepted() -> None:
    assert len(names(workers=1022, ps=0, chief=True, evaluator=True)) == 1024


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (0, 0)),
        ({"max_restarts": 3}, (3, 100)),
        ({"max_restarts": 3, "max_preemptions": 0}, (3, 0)),
        ({"max_preemptions": 5}, (0, 5)),
        ({"elastic": Elastic(least=1, most=2)}, (0, 100)),
    ],
)
def test_requests_for_a_restart_are_granted_by_default_where_crashes_are_restarted(
    options: dict[str, Any], limits: tuple[int, int]
) -> None:
    found = LaunchSpec(command=("x",), **options).limits
    assert (found.max_restarts, found.max_preemptions) == limits


def test_tasks_have_more_time_where_they_may_save_their_state_unless_a_time_is_given() -> None:
    by_default, given = LaunchSpec(command=("x",)), LaunchSpec(command=("x",), grace_seconds=7.0)
    assert (by_default.seconds_to_end, by_default.seconds_to_save) == (5.0, 30.0)
    assert (given.seconds_to_end, given.seconds_to_save) == (7.0, 7.0)
