"""Gives the exit code that asks for a restart to a program that TensorFlow ends because another worker is lost.

TensorFlow gives up a worker that is silent for about 9 s: the step of every other worker raises an error. Without a
program that handles it, the error would end the process with exit code 1, after many seconds in which TensorFlow waits
for the lost worker once more.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from types import TracebackType

from tfdist._log import get_logger
from tfdist.watch.leave import leave
from tfdist.workers import LOST_CLUSTER_ERRORS

# A link that was cut for some seconds may be back before TensorFlow notices that its connections are lost.
LATE_SECONDS = 60.0
# TensorFlow's coordination service says so of a worker that it has lost, or has lost itself.
_HEARTBEATS = ("stopped sending heartbeats", "CoordinationService/Heartbeat")


class RestartOnLoss:
    """Asks for a restart if TensorFlow's heartbeats are lost, and for other errors of a lost worker in a stall.

    A stall is one that the watch has reported, and some time after its end. Heartbeats may be lost before the watch on
    this worker has seen anything: it waits for the reply of the other worker.
    """

    def __init__(self) -> None:
        self._why = ""
        self._until = -float("inf")
        self._stock: Callable[..., object] | None = None

    def expect(self, why: str, *, seconds: float = float("inf")) -> None:
        """Ends the process with exit code 75 if TensorFlow's error of a lost worker reaches the end of the program.

        Args:
            why: completes "this process ends with exit code 75, because ..."; the first reason counts.
            seconds: how long such an error is expected, unless `forget` is called.
        """
        until = time.monotonic() + seconds
        if self._is_expected():
            until = max(until, self._until)
        else:
            self._why = why
        self._until = until
        self.begin()

    def begin(self) -> None:
        """Looks at the errors that reach the end of the program from now on."""
        if self._stock is None:
            # The hook stays: another library may have replaced it since by one that calls it.
            self._stock, sys.excepthook = sys.excepthook, self._end

    def forget(self) -> None:
        """Leaves errors as they are after a minute: TensorFlow may notice late that a connection was lost."""
        self._until = min(self._until, time.monotonic() + LATE_SECONDS)

    def _is_expected(self) -> bool:
        return time.monotonic() <= self._until

    def _end(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if self._stock is not None:
            self._stock(kind, error, traceback)
        if not issubclass(kind, LOST_CLUSTER_ERRORS):
            return
        why = self._why if self._is_expected() else ""
        if not why and any(text in str(error) for text in _HEARTBEATS):
            why = "TensorFlow has lost another worker"
        if why:
            get_logger().error("this process ends with exit code 75, because %s", why)
            leave()


@functools.cache
def restart_on_loss() -> RestartOnLoss:
    """Returns the one of this process."""
    return RestartOnLoss()
