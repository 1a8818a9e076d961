"""One running rank: its process, its log, its output, the moment of its end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tfdist.launch.command import command_error
from tfdist.launch.output import Console, LineAssembler, Tail
from tfdist.launch.spec import Rank

PARTIAL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class RankProcess:
    """A rank's process in a session of its own, with a thread that reads its output and one that waits for its end.

    Create all ranks on the main thread before watching any of them: a rank dies with the thread that created it, and
    a process with several threads had better not fork.

    Args:
        rank: The rank.
        argv: What to run.
        env: Its whole environment.
        log: The file that gets its raw output.

    Raises:
        CommandError: If the command cannot be executed.
        OSError: If the log cannot be written, or there are no resources for another process.
    """

    def __init__(self, rank: Rank, argv: Sequence[str], env: Mapping[str, str], *, log: Path) -> None:
        self.rank = rank
        self.tail = Tail()
        self.hidden = False
        self.ended = False
        self.told_at: float | None = None
        self.kill_at = float("inf")
        self._log: IO[bytes] | None = log.open("wb", buffering=0)
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        except OSError as error:
            self._log.close()
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC):
                raise command_error(argv[0], error.errno) from None
            raise
        self._reader: threading.Thread | None = None

    @property
    def group(self) -> int:
        """Its process group, whose number is its own."""
        return self._process.pid

    def watch(self, console: Console, number: int, on_exit: Callable[[RankProcess, int, float], None]) -> None:
        """Starts to show its output and to wait for its end.

        Args:
            console: Where to show it.
            number: The running number of the rank, for its colour.
            on_exit: Called once, on another thread, with the exit code as Popen gives it and the time by
                `time.monotonic`.
        """
        self._reader = threading.Thread(target=self._read, args=(console, number), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, args=(on_exit,), daemon=True).start()

    def tell(self, signum: int, *, grace_seconds: float) -> None:
        """Sends a signal to its process group, to be killed if it has not ended after the grace period."""
        now = time.monotonic()
        if self.told_at is None:
            self.told_at = now
        self.kill_at = min(self.kill_at, now + grace_seconds)
        self.send(signum)

    def kill(self) -> None:
        """Kills its process group."""
        if self.told_at is None:
            self.told_at = time.monotonic()
        self.kill_at = float("inf")
        self.send(signal.SIGKILL)

    def send(self, signum: int) -> None:
        """Sends a signal to its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, signum)

    def finish(self, seconds: float) -> None:
        """Waits for the rest of its output and collects the process, both for a bounded time."""
        if self._reader is not None:
            self._reader.join(seconds)
        elif self._log is not None:
            self._log.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _wait(self, on_exit: Callable[[RankProcess, int, float], None]) -> None:
        if hasattr(os, "waitid"):
            # Not collected yet: as long as it is a zombie, nobody else can get its number, which names its group.
            end = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            now = time.monotonic()
            status = end.si_status if end else 0
            code = status if end and end.si_code == os.CLD_EXITED else -status
        else:
            code, now = self._process.wait(), time.monotonic()
        on_exit(self, code, now)

    def _read(self, console: Console, number: int) -> None:
        pipe = self._process.stdout
        if pipe is None:
            return
        lines = LineAssembler()
        shown, shown_at = "", time.monotonic()
        with pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if selector.select(PARTIAL_SECONDS if console.live else None):
                    data = os.read(pipe.fileno(), 65536)
                    if not data:
                        break
                    self._write_log(data)
                    finished = lines.feed(data)
                    if finished:
                        shown, shown_at = "", time.monotonic()
                        self._show(console, number, finished)
                partial = lines.partial
                if console.live and partial != shown and time.monotonic() - shown_at >= PARTIAL_SECONDS:
                    shown, shown_at = partial, time.monotonic()
                    if partial and not self.hidden:
                        console.show(self.rank.label, number, [partial])
        self._show(console, number, lines.close())
        if self._log is not None:
            self._log.close()

    def _show(self, console: Console, number: int, lines: list[str]) -> None:
        self.tail.extend(lines)
        if lines and not self.hidden:
            console.show(self.rank.label, number, lines)

    def _write_log(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:
            # A full disk must not stop the training.
            self.tail.extend([f"(its log ends here: {error.strerror})"])
            self._log.close()
            self._log = None


def _die_with_parent() -> Callable[[], None] | None:
    """Returns what the child does between fork and exec so that the kernel kills it when this thread ends."""
    if not sys.platform.startswith("linux"):
        return None
    # Everything is looked up before the fork; after it, nothing may import or take a lock.
    prctl, getppid, leave, parent = ctypes.CDLL(None).prctl, os.getppid, os._exit, os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if getppid() != parent:
            leave(1)

    return ask
