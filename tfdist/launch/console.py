"""Shows the lines of all tasks, each with the name of its task, and the progress bar of the chief."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from tfdist.launch.alike import HOLD_SECONDS, AlikeLines, is_log_line, joint_name
from tfdist.launch.noise import NoiseFilter, is_noise, split_log_line
from tfdist.launch.screen import Screen, without_colour

_PATIENCE_SECONDS = 1.0
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


class Console:
    """Writes lines of several tasks to one stream. Any thread may call its methods.

    Args:
        screen: where the lines go.
        colour: whether the names are coloured, and lines keep the colours that their program gave them.
        show_all: whether to show log lines of dependencies too, and each line of each task for itself.
        hold_seconds: how long log lines wait for other tasks to write them too.

    Example:
        >>> import sys
        >>> from tfdist.launch.screen import Screen
        >>> console = Console(Screen(sys.stdout, is_live=False), colour=False)
        >>> console.begin(["worker 0"])
        >>> console.show("worker 0", ["I0000 00:00:1795257841.957614   31274 port.cc:153] oneDNN is on.", "Epoch 1/3"])
        [worker 0] Epoch 1/3
    """

    def __init__(
        self, screen: Screen, *, colour: bool, show_all: bool = False, hold_seconds: float = HOLD_SECONDS
    ) -> None:
        self._screen = screen
        self._colour = colour
        self._show_all = show_all
        self._hold_seconds = 0.0 if show_all else hold_seconds
        self._lock = threading.Condition()
        self._names: list[str] = []
        self._noise: dict[str, NoiseFilter] = {}
        self._alike = AlikeLines([], seconds=0.0)
        self._bar = ""
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @classmethod
    def on(cls, stream: TextIO | Screen, env: Mapping[str, str] = os.environ, *, show_all: bool = False) -> Console:
        """Returns a console for a stream: coloured on a terminal, unless NO_COLOR is set."""
        if isinstance(stream, Screen):
            return cls(stream, colour=not env.get("NO_COLOR"), show_all=show_all)
        is_live = stream.isatty() and env.get("TERM") != "dumb"
        screen = Screen(stream, is_live=is_live, columns=lambda: shutil.get_terminal_size().columns)
        return cls(screen, colour=is_live and not env.get("NO_COLOR"), show_all=show_all)

    @property
    def is_live(self) -> bool:
        """Whether the progress bar of the chief is shown while it changes."""
        return self._screen.is_live

    @property
    def left_out(self) -> int:
        """How many lines of dependencies were not shown."""
        with self._lock:
            return sum(noise.left_out for noise in self._noise.values())

    def begin(self, names: Sequence[str]) -> None:
        """Notes that all tasks start.

        Args:
            names: their names, the chief first. A name's position chooses its colour.
        """
        self.flush()
        with self._lock:
            self._names = list(names)
            # An evaluator says other things than the tasks of the cluster.
            peers = [name for name in names if not name.startswith("evaluator")]
            self._alike = AlikeLines(peers, seconds=self._hold_seconds)

    def show(self, name: str, lines: Sequence[str]) -> None:
        """Shows whole lines of a task.

        Args:
            name: the task.
            lines: the lines, without line ends.
        """
        with self._lock:
            lines = [part for line in lines for part in self._parts(name, line)]
            if not self._show_all:
                lines = self._noise.setdefault(name, NoiseFilter()).without(lines)
            if self._bar and lines and name == self._names[0] and not is_log_line(lines[0]):
                # The line of the bar has ended: it is the first one of these lines.
                self._take(float("inf"))
                self._bar = ""
                self._screen.live("")
            now = time.monotonic()
            for line in lines:
                self._alike.add(name, line, now=now)
            self._take(now)
            if self._alike.due is not None:
                self._wake()

    def show_unfinished(self, name: str, line: str, *, is_rewritten: bool) -> None:
        """Shows the present state of a task's unfinished line, on a terminal.

        Args:
            name: the task.
            line: the line.
            is_rewritten: whether the line has been rewritten, as a progress bar is.
        """
        with self._lock:
            if not self._screen.is_live or is_noise(without_colour(line)):
                return
            if name == self._names[0]:
                self._take(float("inf"))
                self._bar = self._named([name], line)
                self._screen.live(self._bar)
            elif not is_rewritten:
                # Such as a question: the task writes nothing else. The bars of other tasks would replace each other.
                self._take(float("inf"))
                self._screen.lines([self._named([name], line)])

    def leave(self, name: str) -> None:
        """Notes that a task writes no further lines."""
        with self._lock:
            self._alike.leave(name)
            self._take(time.monotonic())
            if self._bar and name == self._names[0]:
                self._take(float("inf"))
                self._bar = ""
                self._screen.end()

    def flush(self) -> None:
        """Shows all lines that are held back."""
        with self._lock:
            self._take(float("inf"))

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Shows all lines that are held back, and no live line while the body writes to the same terminal.

        If nobody reads this stream, the body runs all the same after a second: it may write to another one.
        """
        is_alone = self._lock.acquire(timeout=_PATIENCE_SECONDS)
        try:
            if is_alone:
                self._take(float("inf"))
                self._screen.live("")
            yield
            if is_alone:
                self._screen.live(self._bar)
        finally:
            if is_alone:
                self._lock.release()

    def close(self) -> None:
        """Shows all lines that are held back, and ends the thread. All tasks have ended."""
        with self.apart():
            self._is_closed = True
        if self._lock.acquire(timeout=_PATIENCE_SECONDS):
            self._lock.notify_all()
            self._lock.release()

    def _take(self, now: float) -> None:
        taken = self._alike.take(now=now)
        self._screen.lines([self._named(names, line) for names, line in taken])

    def _parts(self, name: str, line: str) -> list[str]:
        """Splits a log line from the unfinished line behind which it was written."""
        before, log_line = split_log_line(line)
        if not before or not log_line:
            return [line]
        # The bar goes on in the next line of the task.
        return [log_line] if self._bar and name == self._names[0] else [before, log_line]

    def _named(self, names: Sequence[str], line: str) -> str:
        name = joint_name(names) if len(names) > 1 else names[0]
        if not self._colour:
            return f"[{name}] {without_colour(line)}"
        number = self._names.index(names[0]) if names[0] in self._names else 0
        # A line may end without resetting its colour, which must not spread to the lines of other tasks.
        return f"\x1b[{_COLOURS[number % len(_COLOURS)]}m[{name}]\x1b[0m {line}\x1b[0m"

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="tfdist-console")
            self._thread.start()
        self._lock.notify()

    def _run(self) -> None:
        with self._lock:
            while not self._is_closed:
                due = self._alike.due
                self._lock.wait(None if due is None else max(0.0, due - time.monotonic()))
                self._take(time.monotonic())
