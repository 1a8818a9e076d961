"""The guard: a small process that ends the tasks if the launcher itself is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from tfdist.cluster.launched import LAUNCH_ID
from tfdist.launch import sweep

END_SECONDS = 5.0


class Guard:
    """Starts a process that notices the end of this process: it reads a pipe that only this process can write to.

    Args:
        launch_id: the unique name of the launch.
        grace_seconds: how long the tasks may take to end after SIGTERM, before they are killed.
    """

    def __init__(self, launch_id: str, *, grace_seconds: float) -> None:
        self._launch_id = launch_id
        self._grace_seconds = grace_seconds
        self._groups: set[int] = set()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # A launcher may be a task of another launcher, which ends all processes that have the id of the outer launch in
        # their environment. The guard must not have this id, because it must outlive the tasks that it guards.
        env = {key: value for key, value in os.environ.items() if key != LAUNCH_ID}
        return subprocess.Popen(
            [sys.executable, "-I", "-S", sweep.__file__, self._launch_id, str(self._grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )

    def add(self, group: int) -> None:
        """Sends the guard the process group of a task."""
        self._groups.add(group)
        self._write(f"{group}\n")

    def remove(self, group: int) -> None:
        """Tells the guard that a process group has ended, whose number the system may give to other processes."""
        self._groups.discard(group)
        self._write(f"-{group}\n")

    def keep_alive(self) -> None:
        """Starts another process if the guard has been killed."""
        if self._process.poll() is None:
            return
        self._close()
        # Without resources for another process, the tasks go on without a guard.
        with contextlib.suppress(OSError):
            self._process = self._start()
            self._write("".join(f"{group}\n" for group in self._groups))

    def dismiss(self) -> None:
        """Notifies the guard that all processes have ended, and waits for the end of the guard."""
        self._write("done\n")
        self._close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()

    def _write(self, text: str) -> None:
        try:
            if self._process.stdin:
                self._process.stdin.write(text.encode())
                self._process.stdin.flush()
        except (OSError, ValueError):
            pass  # The guard has been killed, and its pipe may be closed; the tasks go on without it.
