"""The output of a cell: the lines of all tasks, and one line for the chief's progress bar, which is rewritten."""

from __future__ import annotations

import collections
import io
import re
from typing import TextIO

_LAST_LINES = 20
# A line of Keras's progress bar, such as "12/40 ━━━━━━ 0s 4ms/step - loss: 0.1".
_BAR = re.compile(r"\[(?P<task>[^]]+)\] \s*\d+/(\d+|Unknown)\s.*(step|ETA|━|\[=)")


class Cell(io.TextIOBase):
    r"""A stream for the launcher that writes to the output of a cell.

    Args:
        stream: the output of the cell.
        chief: name of the task whose progress bar is shown.

    Example:
        >>> import io
        >>> from tfdist.notebook.cell import Cell
        >>> shown = io.StringIO()
        >>> cell = Cell(shown, chief="worker 0")
        >>> for line in ("[worker 0] 1/2 ━━ 1s 1s/step", "[worker 0] 2/2 ━━ 0s 1s/step", "[worker 1] ready"):
        ...     written = cell.write(f"{line}\n")
        >>> shown.getvalue()
        '[worker 0] 1/2 ━━ 1s 1s/step\r[worker 0] 2/2 ━━ 0s 1s/step\n[worker 1] ready\n'
    """

    def __init__(self, stream: TextIO, *, chief: str) -> None:
        self._stream = stream
        self._chief = chief
        self._bar = ""
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)

    @property
    def last_lines(self) -> list[str]:
        """The last lines, without colours and without states of the progress bar."""
        return list(self._last)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Returns True: the launcher shows unfinished lines, and colours, which notebooks show too."""
        return True

    def write(self, text: str) -> int:
        """Writes whole lines.

        Args:
            text: lines of tasks, which begin with the name of the task, or of the launcher.
        """
        for line in text.splitlines():
            if line.startswith("  "):
                # The launcher repeats the last lines of a task that has failed; `run` raises its exception.
                continue
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
            bar = _BAR.match(plain)
            if bar and bar["task"] != self._chief:
                continue
            if bar:
                # Blanks hide the rest of a longer line.
                blanks = " " * max(0, len(self._bar) - len(plain))
                self._stream.write(f"\r{line}{blanks}" if self._bar else line)
                self._bar = plain
            else:
                self._stream.write(f"\n{line}\n" if self._bar else f"{line}\n")
                self._bar = ""
                self._last.append(plain)
        return len(text)

    def flush(self) -> None:
        """Shows what has been written."""
        self._stream.flush()

    def end(self) -> None:
        """Ends the line of the progress bar."""
        if self._bar:
            self._stream.write("\n")
            self._bar = ""
        self.flush()
