"""The guard: a tiny process that ends the job if the launcher itself is killed."""

from __future__ import annotations

import os
import subprocess
import sys

from tfdist.launch import sweep

END_SECONDS = 5.0


class Guard:
    """Watches over this process through a pipe whose write end only this process has.

    Args:
        launch_id: The job's unique name.
        grace_seconds: How long processes may take to end after SIGTERM.
    """

    def __init__(self, launch_id: str, *, grace_seconds: float) -> None:
        # Without the id of an enclosing job: that job's sweep must not end our guard before our ranks are gone.
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
        """Tells the guard of a rank's process group."""
        self._write(f"{group}\n")

    def done(self) -> None:
        """Tells the guard that nothing is left, and waits for its end."""
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
            pass  # Somebody killed the guard; the job goes on without.
