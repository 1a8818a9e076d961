"""Turns the bytes that tasks write into the lines that are shown: progress bars, prefixes, colours."""

from __future__ import annotations

import codecs
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TextIO

from tfdist.launch.tensorflow_info import without_tensorflow_info

MAX_LINE = 65536
"""Characters of an unfinished line after which it is cut, so that output without line ends needs little memory."""

TAIL_LINES = 400
"""How many of the last lines are kept for the report of a failure."""

TRACEBACK = "Traceback (most recent call last)"

_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_MOVEMENT = re.compile(r"\x1b\[[0-?]*[ -/]*[@-ln-~]")


class LineAssembler:
    r"""Turns the bytes of one task into finished lines; a line rewritten by "\r" or "\b" appears in its last state.

    Example:
        >>> lines = LineAssembler()
        >>> lines.feed(b"1/2\r2/2\nnext")
        ['2/2']
        >>> lines.partial
        'next'
        >>> lines.close()
        ['next']
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""

    @property
    def partial(self) -> str:
        """The text that the unfinished line shows at present."""
        return last_state(self._pending)

    def feed(self, data: bytes) -> list[str]:
        """Adds bytes that were read, and returns the lines that they finished."""
        return self._take(self._decoder.decode(data))

    def close(self) -> list[str]:
        """Returns the unfinished last line as a list; the list is empty if there is no such line."""
        lines = self._take(self._decoder.decode(b"", final=True))
        partial, self._pending = self.partial, ""
        return [*lines, partial] if partial else lines

    def _take(self, text: str) -> list[str]:
        *finished, rest = (self._pending + text).split("\n")
        lines = [last_state(line) for line in finished]
        rest = _without_history(rest)
        while len(rest) > MAX_LINE:
            lines.append(last_state(rest[:MAX_LINE]))
            rest = rest[MAX_LINE:]
        self._pending = rest
        return lines


def last_state(line: str) -> str:
    r"""Returns the text that a line shows after it has been rewritten.

    Example:
        >>> last_state("10%\r20%\b\b\b30%"), last_state("done\r")
        ('30%', 'done')
    """
    for state in reversed(line.split("\r")):
        shown = _visible(state)
        if shown:
            return shown
    return ""


def _without_history(line: str) -> str:
    """Removes the states that later states have replaced, so that a long progress bar remains one short line."""
    states = line.split("\r")
    for start in range(len(states) - 1, 0, -1):
        if _visible(states[start]):
            return "\r".join(states[start:])
    return line if _visible(states[0]) else states[-1]


def _visible(text: str) -> str:
    # Sequences that move the cursor or erase text would spoil the lines of other tasks; colours are kept.
    if "\x1b" in text:
        text = _MOVEMENT.sub("", text)
    if "\b" not in text:
        return text
    shown: list[str] = []
    for char in text:
        if char != "\b":
            shown.append(char)
        elif shown:
            shown.pop()
    return "".join(shown)


def without_colour(text: str) -> str:
    r"""Returns a text without its colour codes, which Keras writes even into a pipe.

    Example:
        >>> without_colour("\x1b[1m10/10\x1b[0m done")
        '10/10 done'
    """
    return _COLOUR.sub("", text)


class Tail:
    """The last lines of one task; the thread that reads the output adds lines, and the report reads them.

    Example:
        >>> tail = Tail(2)
        >>> tail.extend(["step 1", "step 2", "step 3"])
        >>> tail.lines
        ['step 2', 'step 3']
    """

    def __init__(self, size: int = TAIL_LINES) -> None:
        self._lines: deque[str] = deque(maxlen=size)
        self._lock = threading.Lock()
        self.traceback_at: float | None = None

    def extend(self, lines: list[str]) -> None:
        """Adds lines, removes the oldest ones, and sets `traceback_at` to now if one of them begins a traceback."""
        if any(TRACEBACK in line for line in lines):
            self.traceback_at = time.monotonic()
        with self._lock:
            self._lines.extend(lines)

    @property
    def lines(self) -> list[str]:
        """The lines at present, oldest first."""
        with self._lock:
            return list(self._lines)


class Console:
    """Writes lines of several tasks to one stream, each with the name of its task.

    Args:
        stream: the stream to write to.
        colour: whether the names are coloured, and lines keep the colours that their program gave them.
        live: whether unfinished lines are shown too, as on a terminal.
        show_info: whether to show TensorFlow's own information lines.

    Example:
        >>> import sys
        >>> Console(sys.stdout, colour=False, live=False).show("worker 0", 0, ["Epoch 1/3"])
        [worker 0] Epoch 1/3
    """

    def __init__(self, stream: TextIO, *, colour: bool, live: bool, show_info: bool = True) -> None:
        self._stream = stream
        self._colour = colour
        self.live = live
        self._show_info = show_info
        self._lock = threading.Lock()
        self._broken = False

    @classmethod
    def on(cls, stream: TextIO, env: Mapping[str, str] = os.environ, *, show_info: bool = True) -> Console:
        """Returns a console for a stream: coloured on a terminal, unless NO_COLOR is set."""
        terminal = stream.isatty()
        colour = terminal and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        return cls(stream, colour=colour, live=terminal, show_info=show_info)

    def show(self, name: str, number: int, lines: list[str]) -> None:
        """Writes lines of the task `name`; `number`, its position among all tasks from 0, selects the colour."""
        if not self._show_info:
            lines = without_tensorflow_info(lines)
        if self._colour:
            # A line may end without resetting its colour, which must not spread to the lines of other tasks.
            prefix, end = f"\x1b[{_COLOURS[number % len(_COLOURS)]}m[{name}]\x1b[0m ", "\x1b[0m\n"
            text = "".join(f"{prefix}{line}{end}" for line in lines)
        else:
            text = "".join(f"[{name}] {without_colour(line)}\n" for line in lines)
        with self._lock:
            if self._broken:
                return
            try:
                encoding = self._stream.encoding or "utf-8"
                self._stream.write(text.encode(encoding, "replace").decode(encoding))
                self._stream.flush()
            except (OSError, ValueError):
                # The reader of the stream has ended, as in `| head`. The tasks go on, and the log files are complete.
                self._broken = True
