"""What the tasks of a cluster do: which ones compute, and which one reports."""

from __future__ import annotations

from collections.abc import Iterable

from tfdist.cluster import ClusterConfig, Task
from tfdist.cluster.tasks import CHIEF_JOBS
from tfdist.cluster.validation import tasks_of

EVALUATOR = "evaluator"


def job_of(task: str) -> str:
    """Returns the job in the name of a task.

    Example:
        >>> job_of("worker 1")
        'worker'
    """
    return task.partition(" ")[0]


def in_order(tasks: Iterable[str]) -> list[str]:
    """Returns names of tasks sorted by job and index.

    Example:
        >>> in_order(["worker 10", "worker 2", "chief 0"])
        ['chief 0', 'worker 2', 'worker 10']
    """

    def key(task: str) -> tuple[str, int, str]:
        index = task.rpartition(" ")[2]
        return job_of(task), int(index) if index.isdecimal() else 0, task

    return sorted(tasks, key=key)


def computing(tasks: Iterable[str]) -> list[str]:
    """Returns the tasks that compute steps or evaluate.

    Parameter servers, and the chief that coordinates them, are idle most of the time.

    Args:
        tasks: the names of all tasks.

    Example:
        >>> computing(["chief 0", "worker 0"]), computing(["chief 0", "worker 0", "ps 0"])
        (['chief 0', 'worker 0'], ['worker 0'])
    """
    tasks = list(tasks)
    idle = ("ps", *CHIEF_JOBS) if any(job_of(task) == "ps" for task in tasks) else ()
    return [task for task in tasks if job_of(task) not in idle]


def other_tasks(config: ClusterConfig) -> tuple[Task, ...]:
    """Returns all other tasks except the evaluator; unlike ClusterConfig.peers, also for the evaluator."""
    mine = (config.task_type, config.task_index)
    tasks = tasks_of(config.jobs, config.indices)
    return tuple(task for task in tasks if task.job != EVALUATOR and task[:2] != mine)


def own_task(config: ClusterConfig) -> tuple[Task, ...]:
    """Returns the task of this process; nothing if it has no address."""
    if config.task_type is None or config.address is None:
        return ()
    return (Task(config.task_type, config.task_index, config.address),)


def reporter_of(config: ClusterConfig) -> str | None:
    """Returns the name of the task that reports for all tasks, which is the chief; None if the cluster lists no chief.

    Example:
        >>> config = ClusterConfig(jobs={"worker": ["a:1", "b:1"]}, task_type="worker", task_index=1)
        >>> reporter_of(config)
        'worker 0'
    """
    if config.is_chief:
        return config.task_name
    names = [task.name for task in tasks_of(config.jobs, config.indices)]
    chiefs = [name for name in names if job_of(name) in CHIEF_JOBS]
    if not chiefs and not config.has_parameter_servers:
        chiefs = [name for name in names if name == "worker 0"]
    return chiefs[0] if chiefs else None
