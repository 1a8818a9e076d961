"""What can go wrong between the processes of a cluster."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from tfdist.cluster.tasks import Task


class PeerTimeoutError(TimeoutError):
    """One or more tasks did not answer before the deadline.

    Args:
        message: one sentence that names every one of them and what to do.
        missing: the same as pairs of task and reason.

    Example:
        >>> error = PeerTimeoutError("worker 1 did not answer", [(Task("worker", 1, "a:1"), "connection refused")])
        >>> [task.name for task, reason in error.missing]
        ['worker 1']
    """

    def __init__(self, message: str, missing: Sequence[tuple[Task, str]] = ()) -> None:
        # OSError reads two arguments as errno and text, so it gets only one.
        super().__init__(message)
        self.missing: tuple[tuple[Task, str], ...] = tuple(missing)


class PortInUseError(OSError):
    """Another process holds the port that the cluster gives to this task.

    Example:
        >>> import errno
        >>> PortInUseError("worker 0 expected port 2222 to be free").errno == errno.EADDRINUSE
        True
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EADDRINUSE
