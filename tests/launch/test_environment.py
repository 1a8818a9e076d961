from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tfdist.cluster import ClusterConfig, Task
from tfdist.cluster.launched import Launched, launched
from tfdist.launch import environment
from tfdist.launch.environment import task_env, tf_config, thread_env, thread_share
from tfdist.launch.spec import LaunchSpec

WORKERS = [Task("worker", 0), Task("worker", 1)]
PS_CLUSTER = [Task("chief", 0), *WORKERS, Task("ps", 0), Task("evaluator", 0)]


def test_tf_config_lists_every_task_of_the_cluster_and_names_the_own_task() -> None:
    ports = {task: 1000 + number for number, task in enumerate(PS_CLUSTER[:-1])}
    assert json.loads(tf_config(WORKERS[1], ports, host="localhost")) == {
        "cluster": {
            "chief": ["localhost:1000"],
            "worker": ["localhost:1001", "localhost:1002"],
            "ps": ["localhost:1003"],
        },
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "::1"])
def test_tf_config_equals_that_of_a_cluster_config_of_the_same_task(host: str) -> None:
    spec = LaunchSpec(command=("x",), workers=2, ps=1, evaluator=True)
    ports = {task: 1000 + number for number, task in enumerate(spec.cluster_tasks)}
    for task in spec.tasks:
        config = ClusterConfig.from_tf_config(tf_config(task, ports, host=host))
        assert config.task_name == task.name
        assert config.address == (
            None if task.job == "evaluator" else f"{'[::1]' if host == '::1' else host}:{ports[task]}"
        )
        assert config.to_tf_config() == tf_config(task, ports, host=host)


def test_an_evaluator_alone_has_an_empty_cluster_and_its_task() -> None:
    text = tf_config(Task("evaluator", 0), {}, host="localhost")
    assert json.loads(text) == {"cluster": {}, "task": {"type": "evaluator", "index": 0}}


@pytest.mark.parametrize(
    ("tasks", "cores", "requested", "share"),
    [
        (WORKERS, 2, None, 1),
        (WORKERS, 9, None, 4),
        (WORKERS, 1, None, 1),
        ([Task("chief", 0), *WORKERS], 6, None, 2),
        (PS_CLUSTER, 6, None, 3),
        ([Task("evaluator", 0)], 4, None, 4),
        (WORKERS, 2, 7, 7),
        (WORKERS, 2, 0, 0),
    ],
)
def test_cpus_are_divided_among_the_tasks_that_train(
    tasks: list[Task], cores: int, requested: int | None, share: int
) -> None:
    assert thread_share(tasks, cores=cores, requested=requested) == share


def test_tasks_of_a_ps_cluster_have_eight_interop_threads_and_only_workers_and_evaluator_an_intraop_limit() -> None:
    variables = {task.name: thread_env(task, PS_CLUSTER, share=1) for task in PS_CLUSTER}
    assert {env["TF_NUM_INTEROP_THREADS"] for env in variables.values()} == {"8"}
    limited = [name for name, env in variables.items() if env.get("TF_NUM_INTRAOP_THREADS") == "1"]
    assert limited == ["worker 0", "worker 1", "evaluator 0"]


def test_a_share_of_zero_sets_no_variable() -> None:
    assert thread_env(WORKERS[0], WORKERS, share=0) == {}


def test_variables_of_the_user_override_the_thread_share_and_the_environment_is_not_changed() -> None:
    spec = LaunchSpec(command=("x",), workers=2, env={"A": "from --env", "TF_NUM_INTEROP_THREADS": "5"})
    base = {"OMP_NUM_THREADS": "3", "A": "old", "B": "kept"}
    before = dict(os.environ)
    env = task_env(WORKERS[0], spec, ports={}, share=1, launch_id="id", base=base)
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["TF_NUM_INTEROP_THREADS"] == "5"
    assert env["TF_NUM_INTRAOP_THREADS"] == "1"
    assert (env["A"], env["B"], env["PYTHONUNBUFFERED"], env["TFDIST_LAUNCH_ID"]) == ("from --env", "kept", "1", "id")
    assert base == {"OMP_NUM_THREADS": "3", "A": "old", "B": "kept"}
    assert dict(os.environ) == before


def test_a_task_learns_its_launch_its_attempt_and_where_to_record_its_steps() -> None:
    spec = LaunchSpec(command=("x",), workers=2)
    inherited = {"TFDIST_LAUNCH_ID": "outer", "TFDIST_ATTEMPT": "7", "TFDIST_PROGRESS_FILE": "/outer"}
    arguments = {"ports": {}, "share": 1, "launch_id": "id", "base": inherited}
    env = task_env(WORKERS[0], spec, attempt=2, progress_file=Path("/logs/p"), **arguments)
    assert launched(env) == Launched(launch_id="id", attempt=2, progress_file=Path("/logs/p"))
    assert launched(task_env(WORKERS[0], spec, **arguments)) == Launched(launch_id="id", attempt=0)


def test_a_choice_of_environment_that_is_inherited_does_not_hide_the_cluster_from_the_tasks() -> None:
    arguments = {"ports": {task: 1000 + task.index for task in WORKERS}, "share": 1, "launch_id": "id"}
    env = task_env(WORKERS[1], LaunchSpec(command=("x",), workers=2), base={"TFDIST_ENVIRONMENT": "none"}, **arguments)
    assert ClusterConfig.detect(env).num_workers == 2
    asked_for = LaunchSpec(command=("x",), workers=2, env={"TFDIST_ENVIRONMENT": "none"})
    assert ClusterConfig.detect(task_env(WORKERS[1], asked_for, base={}, **arguments)).num_workers == 1


@pytest.mark.parametrize(("limit", "cores"), [(None, 64), (4.0, 4), (2.5, 2), (0.3, 1), (100.0, 64)])
def test_the_cpus_of_a_container_are_those_of_its_limit(
    limit: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    monkeypatch.setattr(environment, "cpu_limit", lambda: limit)
    assert environment.available_cores() == cores
