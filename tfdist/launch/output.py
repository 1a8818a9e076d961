"""Turns the bytes that a task writes into lines, and keeps the last ones."""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections import deque

from tfdist.launch.noise import is_noise

MAX_LINE = 65536
"""Characters of an unfinished line after which it is cut, so that output without line ends needs little memory."""

TAIL_LINES = 400
"""How many of the last lines are kept for the report of a failure."""

TRACEBACK = "Traceback (most recent call last)"

ENDS_WITHIN_SECONDS = 1.0
"""Several lines that a task writes later than this after a traceback show that it has handled the exception."""

LINES_OF_AN_END = 2
"""So many lines a task may write later while it ends, such as those of what it leaves."""

# What a task that is ending may write late: reports of a crash, further lines of a message, and log lines of tfdist.
_OF_AN_END = re.compile(
    r"\s|$|F\d{4} |\*\*\* |Fatal Python error|(?:Current t|T)hread 0x|terminate called|Extension modules: "
    r"|Exception ignored in|Aborted|tfdist: "
)
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
        self._is_rewritten = False

    @property
    def is_rewritten(self) -> bool:
        """Whether the unfinished line has been rewritten, as a progress bar is."""
        return self._is_rewritten

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
        self._is_rewritten = (self._is_rewritten and not finished) or "\r" in rest or "\b" in rest
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
        self._lines_after = 0

    @property
    def went_on(self) -> bool:
        """Whether the task has written on after its last traceback."""
        return self._lines_after > LINES_OF_AN_END

    def extend(self, lines: list[str], *, at: float | None = None) -> None:
        """Adds lines, and removes the oldest ones.

        Args:
            lines: the lines; if one of them begins a traceback, `traceback_at` is set. If lines of the program come
                later, `went_on` is set.
            at: when the lines were read, by `time.monotonic`; None means now.
        """
        at = time.monotonic() if at is None else at
        if any(TRACEBACK in line for line in lines):
            self.traceback_at, self._lines_after = at, 0
        elif self.traceback_at is not None and at - self.traceback_at > ENDS_WITHIN_SECONDS:
            self._lines_after += sum(not is_noise(line) and not _OF_AN_END.match(line) for line in lines)
        with self._lock:
            self._lines.extend(lines)

    @property
    def lines(self) -> list[str]:
        """The lines at present, oldest first."""
        with self._lock:
            return list(self._lines)
