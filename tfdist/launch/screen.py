"""Writes lines to a stream, and under them one line that is rewritten, such as a progress bar."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TextIO

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RESET = "\x1b[0m"


def without_colour(text: str) -> str:
    r"""Returns a text without its colour codes, which Keras writes even into a pipe.

    Example:
        >>> without_colour("\x1b[1m10/10\x1b[0m done")
        '10/10 done'
    """
    return _COLOUR.sub("", text)


def cells(text: str) -> int:
    r"""Returns how many columns of a terminal a text takes.

    Example:
        >>> cells("\x1b[1m10/10\x1b[0m"), cells("\u5b57")
        (5, 2)
    """
    return sum(map(_cells_of, without_colour(text)))


def cut(text: str, columns: int) -> str:
    r"""Returns as much of a text as fits into some columns; its colour codes take none.

    Example:
        >>> cut("\x1b[1m10/10\x1b[0m done", 4)
        '\x1b[1m10/1\x1b[0m'
        >>> cut("done", 4)
        'done'
    """
    if cells(text) <= columns:
        return text
    shown, used, position = "", 0, 0
    while position < len(text):
        colour = _COLOUR.match(text, position)
        if colour:
            shown, position = shown + colour[0], colour.end()
            continue
        used += _cells_of(text[position])
        if used > columns:
            break
        shown, position = shown + text[position], position + 1
    return f"{shown}{_RESET}" if _COLOUR.search(shown) else shown


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Screen:
    r"""Writes lines, and one live line under them.

    Args:
        stream: where the lines go. A stream whose reader has ended is no error.
        is_live: whether the stream can show a live line: a terminal, or the output of a cell of a notebook.
        columns: returns the width of the terminal; None does not cut live lines.

    Example:
        >>> import io
        >>> shown = io.StringIO()
        >>> screen = Screen(shown, is_live=True)
        >>> screen.live("1/2 loss 0.50")
        >>> screen.lines(["ready"])
        >>> screen.live("2/2 done")
        >>> screen.end()
        >>> shown.getvalue()
        '1/2 loss 0.50\rready        \n1/2 loss 0.50\r2/2 done     \n'
    """

    def __init__(self, stream: TextIO, *, is_live: bool, columns: Callable[[], int] | None = None) -> None:
        self.is_live = is_live
        self._stream = stream
        self._columns = columns
        self._live = ""
        self._is_broken = False

    def lines(self, lines: Sequence[str]) -> None:
        """Writes whole lines above the live line.

        Args:
            lines: the lines, without line ends.
        """
        if not lines:
            return
        first, *others = lines
        self._write("\n".join([self._over(first), *others]) + "\n" + self._live)

    def live(self, text: str) -> None:
        """Rewrites the live line; an empty text removes it.

        Args:
            text: the line.
        """
        if not self.is_live:
            return
        if self._columns is not None:
            # A line that fills the last column would move the cursor to the next line.
            text = cut(text, max(1, self._columns() - 1))
        written = self._over(text) if text else f"{self._over('')}\r" if self._live else ""
        self._live = text
        self._write(written)

    def end(self) -> None:
        """Ends the live line, which stays in its last state."""
        if self._live:
            self._live = ""
            self._write("\n")

    def _over(self, text: str) -> str:
        """Returns what replaces the live line with a text: blanks hide the rest of a longer line."""
        if not self._live:
            return text
        return f"\r{text}{' ' * max(0, cells(self._live) - cells(text))}"

    def _write(self, text: str) -> None:
        if self._is_broken or not text:
            return
        try:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            # The reader of the stream has ended, as in `| head`. The tasks go on, and the log files are complete.
            self._is_broken = True
