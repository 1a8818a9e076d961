"""Decides when a run has failed and which tasks it no longer needs. Pure functions of the tasks that have ended."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from tfdist.cluster import Task
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.launch.environment import has_ps
from tfdist.launch.result import TaskExit

CAUSE_SECONDS = 30.0
"""A traceback that a task wrote longer before another task failed is not the cause of that failure."""


def first_failure(tasks: Sequence[Task], exits: Sequence[TaskExit]) -> TaskExit | None:
    """Returns the end of the task that failed first; None if no task has failed.

    A task that received a signal from the launcher has not failed, however it ended. A worker or parameter server that
    ended after the success of its coordinator has not failed either: it ended because the coordinator was gone.

    Example:
        >>> tasks = [Task("worker", 0), Task("worker", 1)]
        >>> exits = [TaskExit(task=tasks[0], code=1, seconds=9.2), TaskExit(task=tasks[1], code=3, seconds=9.1)]
        >>> first_failure(tasks, exits).task.name
        'worker 1'
    """
    success_at = coordinator_success_at(tasks, exits)
    failures = [
        end
        for end in exits
        if end.code != 0
        and not end.signalled
        and not (end.task.job in ("worker", "ps") and success_at is not None and end.seconds >= success_at)
    ]
    return min(failures, key=lambda end: end.seconds, default=None)


def cause(first: TaskExit, tracebacks: Mapping[Task, float]) -> Task | None:
    """Returns the task whose exception probably made another task fail first; None if there is none.

    A task that raises an exception takes time to end, since TensorFlow shuts down. A task that lost its peer may end
    sooner. A task that a signal ended did not fail because of a peer, except for the SIGABRT of TensorFlow that has
    lost its peers; nor did one that asked for a restart.

    Args:
        first: the end of the task that failed first.
        tracebacks: when each task wrote its last traceback, in seconds after the start, without those of exceptions
            that the task has handled.

    Example:
        >>> first = TaskExit(task=Task("worker", 0), code=1, seconds=60.0)
        >>> cause(first, {Task("worker", 0): 59.9, Task("worker", 1): 58.0}).name
        'worker 1'
        >>> cause(first, {Task("worker", 1): 3.0}) is None
        True
    """
    if first.code == RESTART_CODE or (first.code < 0 and first.code != -signal.SIGABRT):
        return None
    onset = min(first.seconds, tracebacks.get(first.task, first.seconds))
    earlier = {task: at for task, at in tracebacks.items() if onset - CAUSE_SECONDS <= at < onset}
    return min(earlier, key=lambda task: earlier[task], default=None)


def recorders(task: Task, tasks: Sequence[Task]) -> list[Task]:
    """Returns the tasks whose records say how far the training was when a task failed.

    A task records its own steps, except for the evaluator, and the workers and ps of a coordinator.

    Example:
        >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
        >>> [task.name for task in recorders(tasks[1], tasks)]
        ['chief 0']
    """
    trained_by = [one for one in tasks if one.job == "chief" or (one.job == "worker" and not has_ps(tasks))]
    return [task] if task in trained_by else trained_by


def coordinator_success_at(tasks: Sequence[Task], exits: Sequence[TaskExit]) -> float | None:
    """Returns when the coordinator of a cluster with ps succeeded; None if it has not, or if the cluster has no ps.

    Example:
        >>> tasks = [Task("chief", 0), Task("worker", 0), Task("ps", 0)]
        >>> coordinator_success_at(tasks, [TaskExit(task=tasks[0], code=0, seconds=60.0)])
        60.0
    """
    if not has_ps(tasks):
        return None
    return next((end.seconds for end in exits if end.task.job == "chief" and end.code == 0), None)


def unneeded_tasks(tasks: Sequence[Task], exits: Sequence[TaskExit]) -> list[Task]:
    """Returns the running tasks that the run no longer needs; each gets a grace period to end by itself.

    After the success of the coordinator, the run needs no workers and parameter servers. After the end of all other
    tasks, the run does not need the evaluator.

    Example:
        >>> tasks = [Task("worker", 0), Task("evaluator", 0)]
        >>> [task.name for task in unneeded_tasks(tasks, [TaskExit(task=tasks[0], code=0, seconds=60.0)])]
        ['evaluator 0']
    """
    ended = {end.task for end in exits}
    running = [task for task in tasks if task not in ended]
    servers = [task for task in running if task.job in ("worker", "ps")]
    if coordinator_success_at(tasks, exits) is not None and servers:
        return servers
    only_evaluator = bool(running) and all(task.job == "evaluator" for task in running)
    return running if only_evaluator and len(tasks) > 1 else []
