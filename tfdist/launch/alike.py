"""Finds log lines that several tasks write alike, so that they are shown once."""

from __future__ import annotations

import bisect
import collections
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

HOLD_SECONDS = 2.0
"""How long a log line waits for the other tasks to write it too."""

# Lines of loggers: tfdist's own, those of Python's default formats, and Python warnings.
_LOG_LINE = re.compile(r"tfdist: |(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):|\S+:\d+: \w*Warning: ")


def is_log_line(line: str) -> bool:
    """Returns whether a line was written by a logger, and not by the program itself, which decides when it is shown.

    Example:
        >>> is_log_line("tfdist: strategy multi_worker_mirrored: the cluster has 2 workers"), is_log_line("loss 0.5")
        (True, False)
    """
    return _LOG_LINE.match(line) is not None


def joint_name(names: Iterable[str]) -> str:
    """Returns one name for several tasks.

    Example:
        >>> joint_name(["worker 0"]), joint_name(["worker 0", "worker 2"])
        ('worker 0', 'workers 0, 2')
        >>> joint_name(["chief 0", "worker 2", "worker 0", "worker 1", "ps 0", "ps 1"])
        'chief 0, workers 0-2, ps 0, 1'
    """
    indices: dict[str, list[int]] = {}
    for name in names:
        job, _, index = name.rpartition(" ")
        indices.setdefault(job, []).append(int(index))
    parts = []
    for job, found in indices.items():
        found.sort()
        is_range = len(found) > 2 and found[-1] - found[0] == len(found) - 1
        shown = f"{found[0]}-{found[-1]}" if is_range else ", ".join(map(str, found))
        parts.append(f"{job}{'s' if len(found) > 1 and job != 'ps' else ''} {shown}")
    return ", ".join(parts)


@dataclass
class _Held:
    number: int
    line: str
    until: float
    names: list[str] = field(default_factory=list)


class AlikeLines:
    """Holds log lines back for a short time, in which other tasks may write the same lines.

    The lines of each task keep their order. A line that is no log line is held only behind log lines.

    Args:
        tasks: the names of the tasks. A line that all of them have written is not held any longer.
        seconds: how long a line is held; 0 holds none.

    Example:
        >>> lines = AlikeLines(["worker 0", "worker 1"])
        >>> lines.add("worker 0", "tfdist: strategy mirrored", now=0.0)
        >>> lines.add("worker 0", "Epoch 1/3", now=0.1)
        >>> lines.take(now=0.2)
        []
        >>> lines.add("worker 1", "tfdist: strategy mirrored", now=0.3)
        >>> lines.take(now=0.3)
        [(['worker 0', 'worker 1'], 'tfdist: strategy mirrored'), (['worker 0'], 'Epoch 1/3')]
    """

    def __init__(self, tasks: Collection[str], *, seconds: float = HOLD_SECONDS) -> None:
        self._tasks = set(tasks)
        self._seconds = seconds
        self._held: collections.deque[_Held] = collections.deque()
        # The held lines of each text, and the last line of each task: a task may write thousands of lines a second.
        self._of_text: dict[str, list[_Held]] = {}
        self._last: dict[str, int] = {}
        self._count = 0

    @property
    def due(self) -> float | None:
        """When the next line is to be taken; None if there is none."""
        return self._held[0].until if self._held else None

    def add(self, name: str, line: str, *, now: float) -> None:
        """Adds a line of a task.

        Args:
            name: the task.
            line: the line.
            now: the time in seconds.
        """
        is_alike = is_log_line(line)
        if is_alike:
            # Only lines after the task's last one: its own lines keep their order.
            same = self._of_text.get(line, [])
            later = bisect.bisect_right(same, self._last.get(name, 0), key=lambda held: held.number)
            if later < len(same):
                same[later].names.append(name)
                self._last[name] = same[later].number
                return
        self._count += 1
        until = now + self._seconds if is_alike and self._tasks - {name} else now
        held = _Held(self._count, line, until, [name])
        self._held.append(held)
        self._last[name] = held.number
        if is_alike:
            self._of_text.setdefault(line, []).append(held)

    def leave(self, name: str) -> None:
        """Notes that a task writes no further lines."""
        self._tasks.discard(name)

    def take(self, *, now: float) -> list[tuple[list[str], str]]:
        """Returns the lines that are not to be held any longer, each with the tasks that wrote it.

        Args:
            now: the time in seconds; infinity takes all lines.
        """
        taken = []
        while self._held and (self._held[0].until <= now or self._tasks <= set(self._held[0].names)):
            first = self._held.popleft()
            taken.append((first.names, first.line))
            same = self._of_text.get(first.line)
            if same:
                same.pop(0)
                if not same:
                    del self._of_text[first.line]
        return taken
