"""Tells tasks of this start of the tasks from tasks of another start or launch, and says so. Pure functions.

An incarnation is a word such as "4f1c.2": the launch id, a dot, and how often the tasks had been restarted. None stands
for a process that `tfdist launch` did not start, which is taken to belong to this launch.
"""

from __future__ import annotations

OTHER_LAUNCH = "end that task, or give each launch its own ports"
_ANOTHER_LAUNCH = "a task of another launch answers there: "
_EARLIER = "a task of an earlier start answers there: "


def is_foreign(own: str | None, other: str | None) -> bool:
    """Returns whether two tasks belong to different incarnations.

    Example:
        >>> is_foreign("4f1c.2", "4f1c.1"), is_foreign("4f1c.2", "4f1c.2"), is_foreign("4f1c.2", None)
        (True, False, False)
    """
    return own is not None and other is not None and own != other


def is_replaced(own: str | None, other: str | None) -> bool:
    """Returns whether the other task belongs to a later start of the same launch.

    Example:
        >>> is_replaced("4f1c.1", "4f1c.2"), is_replaced("4f1c.2", "4f1c.1"), is_replaced("4f1c.1", "77aa.2")
        (True, False, False)
    """
    return is_foreign(own, other) and _launch(own) == _launch(other) and _attempt(own) < _attempt(other)


def foreign_reason(own: str | None, other: str | None, task_name: str) -> str:
    """Returns why a task of another incarnation is not the peer that is expected at its address.

    Example:
        >>> foreign_reason("4f1c.2", "4f1c.1", "worker 0"), foreign_reason("4f1c.2", "77aa.0", "worker 0")
        ('a task of an earlier start answers there: worker 0', 'a task of another launch answers there: worker 0')
    """
    return f"{_EARLIER if _launch(own) == _launch(other) else _ANOTHER_LAUNCH}{task_name}"


def is_foreign_reason(reason: str) -> bool:
    """Returns whether a reason was made by `foreign_reason`."""
    return reason.startswith((_EARLIER, _ANOTHER_LAUNCH))


def replaced_sentence(task_name: str, own: str | None, other_name: str, other: str | None) -> str:
    """Returns the sentence with which a task ends that a later start of the same launch has replaced.

    Example:
        >>> replaced_sentence("worker 1", "4f1c.0", "worker 0", "4f1c.2")
        'worker 1 expected peers of start 0 of its launch, received an answer of worker 0 of start 2, which has ...'
    """
    return (
        f"{task_name} expected peers of start {_attempt(own)} of its launch, received an answer of {other_name} of "
        f"start {_attempt(other)}, which has replaced this process."
    )


def _launch(incarnation: str | None) -> str:
    return (incarnation or "").rpartition(".")[0]


def _attempt(incarnation: str | None) -> int:
    attempt = (incarnation or "").rpartition(".")[2]
    return int(attempt) if attempt.isdigit() else 0
