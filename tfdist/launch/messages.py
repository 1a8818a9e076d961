"""The launcher's own lines on standard error."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TextIO

_CLOSE_SECONDS = 3.0


class Messages:
    """Writes lines that begin with the name of the program, in a thread: a terminal that is paused delays no task.

    Args:
        stream: where the lines go.
        apart: returns a context in which nothing else is written to the same terminal.

    Example:
        >>> import sys
        >>> messages = Messages(sys.stdout)
        >>> messages.write("logs in tfdist-logs")
        >>> messages.close()
        tfdist launch: logs in tfdist-logs
    """

    def __init__(
        self, stream: TextIO, *, apart: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    ) -> None:
        self._stream = stream
        self._apart = apart
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tfdist-messages")
        self._thread.start()

    def write(self, text: str) -> None:
        """Writes one text soon; a stream whose reader has ended is no error."""
        self._texts.put(text)

    def close(self) -> None:
        """Ends the thread after all lines are written, or after some seconds if nobody reads them."""
        self._texts.put(None)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            try:
                with self._apart():
                    self._stream.write(f"tfdist launch: {text}\n")
                    self._stream.flush()
            except (OSError, ValueError):
                pass  # The terminal is gone, but the processes must be ended all the same.
