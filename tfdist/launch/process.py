"""One running task: its process, its log file, its output, and its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tfdist.cluster import Task
from tfdist.launch.console import Console
from tfdist.launch.output import LineAssembler, Tail

PARTIAL_SECONDS = 1.0
"""After how long an unfinished line is shown, if the task writes nothing else."""

BAR_SECONDS = 0.2
"""How often a line that is rewritten, such as a progress bar, is shown."""


class TaskProcess:
    """The process of a task in a session of its own; one thread reads its output and one thread waits for its end.

    Create the processes of all tasks before watching any of them: forking a process that has several threads is unsafe.

    Args:
        task: the task.
        start: starts the process, in a session of its own and with its output in a pipe; called once.
        log: the file that receives its unchanged output.

    Attributes:
        tail: the last lines of its output.
        hidden: whether its output goes only to the log file from now on.
        ended: whether the process has ended; set by the supervisor.
        signalled_at: when the launcher first sent it a signal, by `time.monotonic`; None if it has not.
        kill_at: when the launcher will kill it, by `time.monotonic`.
        started_at: when the process was started, by `time.monotonic`.
        log_path: the log file.

    Raises:
        CommandError: if the command cannot be executed.
        OSError: if the log file cannot be written, or the system has no resources for another process.
    """

    def __init__(self, task: Task, start: Callable[[], subprocess.Popen[bytes]], *, log: Path) -> None:
        self.task = task
        self.log_path = log
        self.tail = Tail()
        self.hidden = False
        self.ended = False
        self.signalled_at: float | None = None
        self.kill_at = float("inf")
        self._log: IO[bytes] | None = log.open("wb", buffering=0)
        try:
            self._process = start()
        except BaseException:
            self._log.close()
            raise
        self.started_at = time.monotonic()
        self._reader: threading.Thread | None = None

    @property
    def group(self) -> int:
        """The number of the process group, which equals the number of the process."""
        return self._process.pid

    def watch(self, console: Console, on_exit: Callable[[TaskProcess, int, float], None]) -> None:
        """Starts the threads that show its output and wait for its end.

        Args:
            console: where to show the output.
            on_exit: called once, on another thread, with this object, the exit code as in `Popen.returncode` and the
                time of the end by `time.monotonic`.
        """
        self._reader = threading.Thread(target=self._read, args=(console,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, args=(on_exit,), daemon=True).start()

    def end(self, signum: int, *, grace_seconds: float) -> None:
        """Sends a signal to the process group, and sets `kill_at` to the end of the grace period if that is sooner."""
        now = time.monotonic()
        if self.signalled_at is None:
            self.signalled_at = now
        self.kill_at = min(self.kill_at, now + grace_seconds)
        self.send(signum)

    def kill(self) -> None:
        """Kills its process group."""
        if self.signalled_at is None:
            self.signalled_at = time.monotonic()
        self.kill_at = float("inf")
        self.send(signal.SIGKILL)

    def send(self, signum: int) -> None:
        """Sends a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signum)

    def finish(self, seconds: float) -> None:
        """Reads the rest of the output, then waits for the process; each of the two takes at most `seconds`."""
        if self._reader is not None:
            self._reader.join(seconds)
        elif self._log is not None:
            self._log.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _wait(self, on_exit: Callable[[TaskProcess, int, float], None]) -> None:
        if hasattr(os, "waitid"):
            # WNOWAIT keeps the process as a zombie, so that no other process can get its number. The group has the same
            # number.
            try:
                end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                # Another part of this program makes the kernel drop the exit codes of children.
                on_exit(self, 1, time.monotonic())
                return
            now = time.monotonic()
            status = end.si_status if end else 0
            code = status if end and end.si_code == os.CLD_EXITED else -status
        else:
            code, now = self._process.wait(), time.monotonic()
        on_exit(self, code, now)

    def _read(self, console: Console) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        lines = LineAssembler()
        shown, shown_at = "", time.monotonic()
        with pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if selector.select(BAR_SECONDS if console.is_live else None):
                    data = os.read(pipe.fileno(), 65536)
                    if not data:
                        break
                    read_at = time.monotonic()
                    self._write_log(data)
                    finished = lines.feed(data)
                    if finished:
                        shown, shown_at = "", read_at
                        self._show(console, finished, at=read_at)
                partial, seconds = lines.partial, BAR_SECONDS if lines.is_rewritten else PARTIAL_SECONDS
                if console.is_live and partial != shown and time.monotonic() - shown_at >= seconds:
                    shown, shown_at = partial, time.monotonic()
                    if partial and not self.hidden:
                        console.show_unfinished(self.task.name, partial, is_rewritten=lines.is_rewritten)
        self._show(console, lines.close())
        console.leave(self.task.name)
        if self._log is not None:
            self._log.close()

    def _show(self, console: Console, lines: list[str], *, at: float | None = None) -> None:
        self.tail.extend(lines, at=at)
        if lines and not self.hidden:
            console.show(self.task.name, lines)

    def _write_log(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:
            # A full disk must not end the training.
            self.tail.extend([f"(the log file ends here: {error.strerror})"])
            self._log.close()
            self._log = None
