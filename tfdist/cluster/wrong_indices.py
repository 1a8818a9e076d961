"""Decides whether wrong task indices explain why peers are missing, and says so. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.cluster.greeting import Greeting
from tfdist.cluster.tasks import Task

CHECK_INDICES = "give every process its own task.index in TF_CONFIG"
_ANOTHER_TASK = "another task answers there: "


def another_task(name: str) -> str:
    """Returns the reason why a peer is missing if the task with this name answers at the address of the peer.

    Example:
        >>> another_task("worker 0")
        'another task answers there: worker 0'
    """
    return f"{_ANOTHER_TASK}{name}"


def is_another_task(reason: str) -> bool:
    """Returns whether a reason was made by `another_task`."""
    return reason.startswith(_ANOTHER_TASK)


def explain(missing: Sequence[tuple[Task, str]], rivals: Sequence[Greeting]) -> bool:
    """Returns whether at least as many processes with a wrong index were seen as peers are missing.

    Args:
        missing: the peers that have not answered, each with the reason.
        rivals: the processes that could not listen because another process has their port.

    Example:
        >>> missing = [(Task("worker", 1, "a:1"), "connection refused")]
        >>> explain(missing, [Greeting("worker 0", 4711)]), explain(missing, [])
        (True, False)
    """
    return len(missing) <= len(rivals) + sum(is_another_task(reason) for _, reason in missing)


def describe(rivals: Sequence[Greeting]) -> str:
    """Returns which processes could not listen because another process has their port.

    Example:
        >>> describe([Greeting("worker 0", 4711)])
        'another process (4711) was started as worker 0 at the same address'
    """
    names = " and ".join(dict.fromkeys(rival.task_name for rival in rivals))
    processes = ", ".join(str(rival.process) for rival in rivals)
    if len(rivals) == 1:
        return f"another process ({processes}) was started as {names} at the same address"
    return f"{len(rivals)} other processes ({processes}) were started as {names} at the same address"
