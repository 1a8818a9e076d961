"""Runs functions that may hang, such as file operations on a dead network file system, in threads with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class InThread(Generic[_Result]):
    """Starts a function in a daemon thread.

    Nothing ends a system call that hangs, but a daemon thread does not keep the process alive.

    Args:
        function: what to run.
        name: name of the thread.

    Example:
        >>> InThread(lambda: 3, name="three").result(deadline=time.monotonic() + 10)
        3
    """

    def __init__(self, function: Callable[[], _Result], *, name: str) -> None:
        self._function = function
        self._results: list[_Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:
            self._error = error

    def wait(self, *, deadline: float) -> bool:
        """Waits for the end of the function, and returns whether it has ended.

        Args:
            deadline: how long to wait, in seconds of time.monotonic().
        """
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def result(self, *, deadline: float) -> _Result:
        """Returns the result of the function, or raises its error.

        Args:
            deadline: how long to wait, in seconds of time.monotonic().

        Raises:
            TimeoutError: if the function has not returned by then.
        """
        self.wait(deadline=deadline)
        if self._error is not None:
            raise self._error
        if not self._results:
            raise TimeoutError("it has not returned in time")
        return self._results[0]
