"""TF_CONFIG: valid on every task, and the same cluster on all tasks."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster import ClusterConfig
from tfdist.cluster.validation import tasks_of
from tfdist.doctor.finding import Finding, usual

CHECK = "TF_CONFIG"
_ACTION = "give all tasks the same cluster in TF_CONFIG, and each task its own task.type and task.index"
_SHOWN = 3


def gather(config: ClusterConfig) -> dict[str, str]:
    """Returns the address of each task that this task's TF_CONFIG lists, without the evaluator.

    Only some schedulers list the evaluator, which takes no part in the training.
    """
    return {task.name: task.address for task in tasks_of(config.jobs, config.indices) if task.job != "evaluator"}


def decide(clusters: Mapping[str, Mapping[str, str]], *, is_partial: bool = False) -> list[Finding]:
    """Returns one finding for each task.

    Args:
        clusters: the addresses that each task lists, the chief's first.
        is_partial: whether a task may list only some of the tasks, as under Kubeflow's enableDynamicWorker.

    Example:
        >>> cluster = {"worker 0": "a:1", "worker 1": "b:1"}
        >>> [finding.text for finding in decide({"worker 0": cluster, "worker 1": cluster})]
        ['lists 2 tasks', 'lists 2 tasks']
        >>> decide({"worker 0": cluster, "worker 1": {**cluster, "worker 1": "c:1"}})[1].text
        "lists worker 1 at c:1, but worker 0's TF_CONFIG lists it at b:1"
        >>> decide({"worker 0": cluster, "worker 1": {**cluster, "worker 2": "c:1"}})[1].text
        "lists worker 2 at c:1, but worker 0's TF_CONFIG does not list it"
    """
    reference_task, reference = usual({task: tuple(sorted(cluster.items())) for task, cluster in clusters.items()})
    return [
        _of_task(task, own, reference_task, dict(reference), is_partial=is_partial) for task, own in clusters.items()
    ]


def _of_task(
    task: str, own: Mapping[str, str], other: str, reference: Mapping[str, str], *, is_partial: bool
) -> Finding:
    details = []
    for name in dict.fromkeys([*own, *reference]):
        mine, theirs = own.get(name), reference.get(name)
        if mine == theirs or (is_partial and None in (mine, theirs)):
            continue
        here = f"lists {name} at {mine}" if mine else f"does not list {name}"
        there = f"lists it at {theirs}" if theirs else "does not list it"
        details.append(f"{here}, but {other}'s TF_CONFIG {there}")
    if not details:
        count = f"{len(own)} {'task' if len(own) == 1 else 'tasks'}"
        return Finding(check=CHECK, task=task, verdict="pass", text=f"lists {count}" if own else "there is no cluster")
    if len(details) > _SHOWN:
        details[_SHOWN:] = [f"{len(details) - _SHOWN} more differences"]
    return Finding(check=CHECK, task=task, verdict="fail", text="; ".join(details), action=_ACTION)


def invalid(task: str, reason: str) -> Finding:
    """Returns the finding for a TF_CONFIG that describes no valid cluster.

    Args:
        task: name of the task.
        reason: the message of ClusterConfig.
    """
    text, _, action = reason.rstrip(".").removeprefix("TF_CONFIG: ").rpartition("; ")
    return Finding(check=CHECK, task=task, verdict="fail", text=text or action, action=action if text else _ACTION)
