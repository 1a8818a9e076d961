"""The output of a cell: the lines of all tasks, and under them the progress bar of the chief."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import TextIO

from tfdist.launch.screen import Screen, without_colour

_LAST_LINES = 20
# A line of Keras's progress bar, such as "12/40 ━━━━━━ 0s 4ms/step - loss: 0.1".
_BAR = re.compile(r"\[(?P<task>[^]]+)\] \s*\d+/(\d+|Unknown)\s.*(step|ETA|━|\[=)")


class Cell(Screen):
    r"""The launcher's screen in the output of a cell.

    Args:
        stream: the output of the cell.
        chief: name of the task whose progress bars are shown.

    Example:
        >>> import io
        >>> from tfdist.notebook.cell import Cell
        >>> shown = io.StringIO()
        >>> cell = Cell(shown, chief="worker 0")
        >>> cell.live("[worker 0] 1/2 ━━ 1s 1s/step")
        >>> cell.lines(["[worker 1] 1/2 ━━ 1s 1s/step", "[worker 1] ready"])
        >>> cell.live("[worker 0] 2/2 ━━ 0s 1s/step")
        >>> cell.end()
        >>> shown.getvalue().splitlines()[-1]
        '[worker 0] 2/2 ━━ 0s 1s/step'
        >>> cell.last_lines
        ['[worker 1] ready']
    """

    def __init__(self, stream: TextIO, *, chief: str) -> None:
        super().__init__(stream, is_live=True)
        self._chief = chief
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)

    @property
    def last_lines(self) -> list[str]:
        """The last lines, without colours and without progress bars."""
        return list(self._last)

    def write(self, text: str) -> int:
        """Writes the launcher's own lines.

        Args:
            text: whole lines.
        """
        # The launcher repeats the last lines of a task that has failed; `run` raises its exception.
        self.lines([line for line in text.splitlines() if not line.startswith(("    ", "  last lines of "))])
        return len(text)

    def flush(self) -> None:
        """Does nothing: every line is shown when it is written."""

    def lines(self, lines: Sequence[str]) -> None:
        """Writes lines above the bar, without the bars of other tasks.

        Args:
            lines: the lines, without line ends.
        """
        shown = []
        for line in lines:
            bar = _BAR.match(without_colour(line))
            if bar is None:
                self._last.append(without_colour(line))
            if bar is None or bar["task"] == self._chief:
                shown.append(line)
        super().lines(shown)
