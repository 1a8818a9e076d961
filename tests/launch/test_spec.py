from __future__ import annotations

import sys
from typing import Any

import pytest

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
    ],
)
def test_values_out_of_range_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchSpec(**{"command": ("x",), **options})


def test_as_many_tasks_as_one_machine_can_have_are_accepted() -> None:
    assert len(names(workers=1022, ps=0, chief=True, evaluator=True)) == 1024
