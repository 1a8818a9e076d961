"""The errors that are raised when the processes of a cluster cannot reach each other."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from tfdist.cluster.tasks import Task


class PeerTimeoutError(TimeoutError):
    """Raised when one or more tasks did not answer before the deadline.

    Args:
        message: one sentence that names every task that did not answer, and says what to do.
        missing: the tasks that did not answer, each with the reason.

    Example:
        >>> from tfdist.cluster import PeerTimeoutError, Task
        >>> error = PeerTimeoutError("worker 1 did not answer", [(Task("worker", 1, "a:1"), "connection refused")])
        >>> [(task.name, reason) for task, reason in error.missing]
        [('worker 1', 'connection refused')]
    """

    def __init__(self, message: str, missing: Sequence[tuple[Task, str]] = ()) -> None:
        # OSError takes two arguments for errno and text, so only the message is passed on.
        super().__init__(message)
        self.missing: tuple[tuple[Task, str], ...] = tuple(missing)


class PortInUseError(OSError):
    """Raised when another process holds the port that the cluster gives to this task.

    Args:
        message: one sentence that names the task, its port and its address.

    Example:
        >>> import errno
        >>> from tfdist.cluster import PortInUseError
        >>> PortInUseError("worker 0 expected port 2222 to be free").errno == errno.EADDRINUSE
        True
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EADDRINUSE
