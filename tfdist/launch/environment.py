"""Computes the environment variables of each task: TF_CONFIG, numbers of threads, and the user's variables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster import Task
from tfdist.cluster.address import join_address
from tfdist.cluster.cgroup import cpu_limit
from tfdist.cluster.environments import FORCED
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID, LIVE, PROGRESS_FILE
from tfdist.cluster.tf_config import Fields, render
from tfdist.launch.adoption import adopting_variables
from tfdist.launch.spec import LaunchSpec

PS_INTEROP_THREADS = 8
"""The least number of inter-op threads in a cluster with ps.

The coordinator's closures, and the remote calls that they wait for, block threads of this pool; with fewer threads the
training hangs.
"""


def available_cores() -> int:
    """Returns the number of CPUs that this process may use: those it may run on, or less time in a container.

    Example:
        >>> available_cores() >= 1
        True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = cpu_limit()
    return cores if limit is None else min(cores, max(1, round(limit)))


def tf_config(task: Task, ports: Mapping[Task, int], *, host: str) -> str:
    """Returns the TF_CONFIG of one task.

    An evaluator may run alone, without a cluster. ClusterConfig cannot describe this case, so this function does not
    use its checks. For all other tasks, ClusterConfig.to_tf_config() returns the same text.

    Args:
        task: the task that will read the text.
        ports: the port of each task of the cluster, in the order of jobs and indices.
        host: the host of all tasks.

    Example:
        >>> tf_config(Task("evaluator", 0), {Task("worker", 0): 2222}, host="localhost")
        '{"cluster": {"worker": ["localhost:2222"]}, "task": {"type": "evaluator", "index": 0}}'
    """
    jobs: dict[str, tuple[str, ...]] = {}
    for member, port in ports.items():
        jobs[member.job] = (*jobs.get(member.job, ()), join_address(host, port))
    return render(Fields(jobs=jobs, indices={}, task_type=task.job, task_index=task.index))


def thread_share(tasks: Sequence[Task], *, cores: int, requested: int | None = None) -> int:
    """Returns the number of CPU threads of each task that trains; 0 means that no number is set.

    Args:
        tasks: all tasks.
        cores: the number of CPUs that the tasks share.
        requested: the number to return instead of an equal share; None computes the share.

    Example:
        >>> thread_share([Task("worker", 0), Task("worker", 1)], cores=8)
        4
    """
    if requested is not None:
        return requested
    return max(1, cores // max(1, sum(trains(task, tasks) for task in tasks)))


def trains(task: Task, tasks: Sequence[Task]) -> bool:
    """Returns whether a task computes training steps: a worker, or the chief of a cluster without ps.

    Example:
        >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
        >>> [trains(task, tasks) for task in tasks]
        [False, True, False]
    """
    return task.job == "worker" or (task.job == "chief" and not has_ps(tasks))


def has_ps(tasks: Sequence[Task]) -> bool:
    """Returns whether the tasks make a cluster with parameter servers."""
    return any(task.job == "ps" for task in tasks)


def thread_env(task: Task, tasks: Sequence[Task], *, share: int) -> dict[str, str]:
    """Returns the environment variables that limit the CPU threads of a task.

    `tf.config.threading.set_*` in the program overrides the two variables that TensorFlow reads. Parameter servers and
    a coordinator are idle most of the time. For them, only the pool for blocking operations (inter-op) gets a size.

    Args:
        task: the task.
        tasks: all tasks.
        share: the number that `thread_share` returned.

    Example:
        >>> thread_env(Task("worker", 0), [Task("worker", 0)], share=1)
        {'OMP_NUM_THREADS': '1', 'TF_NUM_INTRAOP_THREADS': '1', 'TF_NUM_INTEROP_THREADS': '2'}
    """
    if share == 0:
        return {}
    variables: dict[str, str] = {}
    if trains(task, tasks) or task.job == "evaluator":
        variables |= {"OMP_NUM_THREADS": str(share), "TF_NUM_INTRAOP_THREADS": str(share)}
    least = PS_INTEROP_THREADS if has_ps(tasks) else 2
    return variables | {"TF_NUM_INTEROP_THREADS": str(max(least, share))}


def task_env(
    task: Task,
    spec: LaunchSpec,
    *,
    ports: Mapping[Task, int],
    share: int,
    launch_id: str,
    base: Mapping[str, str],
    attempt: int = 0,
    progress_file: Path | None = None,
    is_live: bool = False,
) -> dict[str, str]:
    """Returns all environment variables of one task.

    Args:
        task: the task.
        spec: the launch; its `env` overrides all variables except those that the launcher sets itself.
        ports: the port of each task of the cluster.
        share: the number that `thread_share` returned.
        launch_id: the unique name of the launch.
        base: the variables to start from; its thread variables override the computed thread variables.
        attempt: how often the tasks had been restarted before this start.
        progress_file: where the task records its steps; None is nowhere.
        is_live: whether the launcher shows the progress bar of the chief while it changes.
    """
    # A variable of the launcher's own environment, such as "none", must not hide TF_CONFIG from the tasks.
    inherited = {name: value for name, value in base.items() if name != FORCED}
    variables = {**thread_env(task, spec.tasks, share=share), **inherited, "PYTHONUNBUFFERED": "1", **spec.env}
    return {
        **variables,
        **(adopting_variables(variables) if spec.adopt else {}),
        "TF_CONFIG": tf_config(task, ports, host=spec.host),
        LAUNCH_ID: launch_id,
        ATTEMPT: str(attempt),
        # An empty text counts as none. A launcher may be a task of another launcher, and so inherit its progress file.
        PROGRESS_FILE: "" if progress_file is None else str(progress_file),
        LIVE: "1" if is_live else "",
    }
