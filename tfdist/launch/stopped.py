"""Finds tasks that are stopped by a signal after the other tasks have ended, for which nobody else would end the run.

While the other tasks train, they notice themselves that a task is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tfdist.cluster.process_state import process_state
from tfdist.launch.process import TaskProcess

STOPPED_SECONDS = 60.0
"""How long tasks may be stopped after the other tasks have ended."""


class StoppedTasks:
    """Remembers since when no task has run.

    Args:
        seconds: how long that may be so.
        state: reads the state of a process.
        clock: the time in seconds.
    """

    def __init__(
        self,
        *,
        seconds: float | None = None,
        state: Callable[[int], str] = process_state,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = STOPPED_SECONDS if seconds is None else seconds
        self._state, self._clock = state, clock
        self._since: float | None = None

    def overdue(self, running: Iterable[TaskProcess]) -> bool:
        """Returns whether all of the tasks that have not ended have been stopped for too long.

        Args:
            running: the tasks that have not ended, at least one.
        """
        if not all(self._state(process.group) == "T" for process in running):
            self._since = None
            return False
        now = self._clock()
        if self._since is None:
            self._since = now
        return now - self._since >= self.seconds
