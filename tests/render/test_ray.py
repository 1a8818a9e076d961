"""Programs for Ray have the options of the job; Ray itself starts the command again after exit code 75."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run
from tfdist.render import Job, render

needs_ray = pytest.mark.skipif(
    not (importlib.util.find_spec("ray") and importlib.util.find_spec("tfdist.ray")), reason="Ray is not installed"
)
PROGRAM = """
    import os, sys
    from tfdist.cluster import ClusterConfig
    from tfdist.cluster.launched import launched

    cluster, start = ClusterConfig.detect(), launched()
    print("TASK", start.attempt, cluster.task_index, len(cluster.jobs["worker"]), cluster.source, os.environ["PLACE"],
          sys.argv[1:], flush=True)
    code = int(sys.argv[1:][start.attempt])
    sys.exit(code if cluster.task_index == 1 else 0)
"""


def call_of(text: str, name: str) -> dict[str, Any]:
    """Returns the keyword arguments of the call of a function in a program, without those that are no literals."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    (call,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
    values = {}
    for keyword in call.keywords:
        try:
            values[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            continue
    return values


def test_the_program_has_the_options_of_the_job() -> None:
    job = Job(
        command=("python", "train.py", 'it\'s "so"', "{x}"),
        name="digits",
        nodes=4,
        cpus=3,
        gpus=1,
        memory_gib=8,
        max_restarts=7,
        restart_failures=True,
        env={"A": "{b}"},
    )
    text = render("ray", job, storage="/mnt/runs")
    assert call_of(text, "ScalingConfig") == {
        "num_workers": 4,
        "use_gpu": True,
        "placement_strategy": "SPREAD",
        "resources_per_worker": {"CPU": 3, "GPU": 1, "memory": 8 * 2**30},
    }
    assert call_of(text, "FailureConfig") == {"max_failures": 7}
    assert call_of(text, "RunConfig") == {"name": "digits", "storage_path": "/mnt/runs"}
    assert f'"command": {list(job.command)!r},\n        "env": {job.env!r},\n        "restart_failures": True' in text
    least = render("ray", Job(command=("a",)))
    assert call_of(least, "ScalingConfig") == {"num_workers": 1, "use_gpu": False, "placement_strategy": "SPREAD"}
    assert call_of(least, "FailureConfig") == {"max_failures": 100}


@needs_ray
def test_ray_knows_the_arguments_of_its_classes() -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    job = Job(command=("a",), name="digits", nodes=4, cpus=3, gpus=1, memory_gib=8)
    text = render("ray", job, storage="/mnt/runs")
    scaling = ScalingConfig(**call_of(text, "ScalingConfig"))
    assert (scaling.total_resources["GPU"], scaling.num_workers) == (4, 4)
    RunConfig(**call_of(text, "RunConfig"), failure_config=FailureConfig(**call_of(text, "FailureConfig")))


@needs_ray
@pytest.mark.full
@pytest.mark.parametrize(
    ("codes", "fields", "code", "starts"),
    [
        (["75", "75", "0"], {}, 0, 3),
        (["75", "3"], {}, 3, 2),
        (["75", "75"], {"max_restarts": 1}, 1, 2),
        (["3", "0"], {"restart_failures": True}, 0, 2),
    ],
    ids=["75", "failure", "too-many", "failures"],
)
def test_ray_starts_the_command_again_after_75(
    codes: list[str], fields: dict[str, Any], code: int, starts: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = (sys.executable, str(tmp_path / "program.py"), *codes)
    job = Job(command=command, name="digits", nodes=2, env={"PLACE": "here"}, **fields)
    (tmp_path / "job.py").write_text(render("ray", job, storage=str(tmp_path / "ray")))
    ended = run([sys.executable, "job.py"], cwd=tmp_path, deadline_seconds=300, env={"RAY_DEDUP_LOGS": "0"})
    tasks = re.findall(r"TASK (\d+) (\d+) 2 TF_CONFIG here ", ended.text)
    assert ended.code == code
    assert sorted(tasks) == [(str(attempt), str(index)) for attempt in range(starts) for index in range(2)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seconds": 60}, "expected no --time for Ray, received 60; Ray has no time limit for jobs"),
        ({"grace_seconds": 60}, "expected no --grace-seconds for Ray, received 60; Ray ends workers at once"),
        ({"tasks_per_node": 2}, "expected no --tasks-per-node for Ray, received 2; Ray chooses the nodes"),
        ({"name": "a b"}, "expected --name of at most 100 characters for Ray, .* received 'a b'"),
    ],
)
def test_what_ray_cannot_honour_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render("ray", Job(command=("a",), **fields))
