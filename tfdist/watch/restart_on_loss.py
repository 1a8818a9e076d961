"""Gives the exit code that asks for a restart to a program that TensorFlow ends because another worker is lost.

TensorFlow gives up a worker that is silent for about 9 s: the step of every other worker raises an error. Without a
program that handles it, the error would end the process with exit code 1, after many seconds in which TensorFlow waits
for the lost worker once more.
"""

from __future__ import annotations

import functools
import sys
from types import TracebackType

from tfdist._log import get_logger
from tfdist.watch.leave import leave
from tfdist.workers import LOST_CLUSTER_ERRORS


class RestartOnLoss:
    """Replaces sys.excepthook while a stall of another worker is known."""

    def __init__(self) -> None:
        self._why: str | None = None
        self._stock = sys.excepthook

    def expect(self, why: str) -> None:
        """Ends the process with exit code 75 if TensorFlow's error of a lost worker reaches the end of the program.

        Args:
            why: completes "this process ends with exit code 75, because ..."; the first reason counts.
        """
        if self._why is None:
            self._stock, sys.excepthook = sys.excepthook, self._end
            self._why = why

    def forget(self) -> None:
        """Leaves errors as they are from now on."""
        if self._why is not None and sys.excepthook == self._end:
            sys.excepthook = self._stock
            self._why = None

    def _end(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        self._stock(kind, error, traceback)
        if self._why is not None and issubclass(kind, LOST_CLUSTER_ERRORS):
            get_logger().error("this process ends with exit code 75, because %s", self._why)
            leave()


@functools.cache
def restart_on_loss() -> RestartOnLoss:
    """Returns the one of this process."""
    return RestartOnLoss()
