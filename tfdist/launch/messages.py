"""The launcher's own lines on standard error."""

from __future__ import annotations

from typing import TextIO


class Messages:
    """Writes lines that begin with the name of the program.

    Args:
        stream: where the lines go.

    Example:
        >>> import sys
        >>> Messages(sys.stdout).write("logs in tfdist-logs")
        tfdist launch: logs in tfdist-logs
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes one text and flushes it; a stream whose reader has ended is no error."""
        try:
            self._stream.write(f"tfdist launch: {text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # The terminal is gone, but the processes must be ended all the same.
