"""The guard: a small process that ends the tasks if the launcher itself is killed."""

from __future__ import annotations

import os
import subprocess
import sys

from tfdist.launch import sweep

END_SECONDS = 5.0


class Guard:
    """Starts a process that notices the end of this process: it reads a pipe that only this process can write to.

    Args:
        launch_id: the unique name of the launch.
        grace_seconds: how long the tasks may take to end after SIGTERM, before they are killed.
    """

    def __init__(self, launch_id: str, *, grace_seconds: float) -> None:
        # A launcher may be a task of another launcher, which ends all processes that have the id of the outer launch in
        # their environment. The guard must not have this id, because it must outlive the tasks that it guards.
        env = {key: value for key, value in os.environ.items() if key != "TFDIST_LAUNCH_ID"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", sweep.__file__, launch_id, str(grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=env,
        )

    def add(self, group: int) -> None:
        """Sends the guard the process group of a task."""
        self._write(f"{group}\n")

    def dismiss(self) -> None:
        """Notifies the guard that all processes have ended, and waits for the end of the guard."""
        self._write("done\n")
        try:
            if self._process.stdin:
                self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _write(self, text: str) -> None:
        try:
            if self._process.stdin:
                self._process.stdin.write(text.encode())
                self._process.stdin.flush()
        except OSError:
            pass  # The guard has been killed; the tasks go on without it.
