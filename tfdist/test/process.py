"""Runs one process of `tfdist test` to its end or to its deadline. This file imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process has ended.

    Attributes:
        code: its exit code; minus the number of the signal that ended it.
        is_late: whether it was killed because it had not ended in time.
        text: what it wrote.
    """

    code: int
    is_late: bool
    text: str

    @property
    def signal_name(self) -> str:
        """The name of the signal that ended it; "" if none did."""
        return signal.Signals(-self.code).name if self.code < 0 else ""


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    deadline: float,
    is_over: Callable[[], bool] = lambda: False,
) -> Ended:
    """Runs `python ARGUMENTS`, and kills it at a deadline, or if this function is left by an exception.

    Args:
        arguments: words after the interpreter.
        environment: its environment variables.
        log: file for what it writes.
        deadline: time of time.monotonic() at which it is killed.
        is_over: asked again and again; the process is killed when it returns True.
    """
    with log.open("wb") as output:
        # The process reads its standard input until this process closes it, and then ends, too.
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        is_late = False
        try:
            while process.poll() is None:
                is_late = time.monotonic() > deadline
                if is_late or is_over():
                    break
                time.sleep(_POLL_SECONDS)
        finally:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
    return Ended(code=process.returncode, is_late=is_late, text=log.read_text(errors="replace"))
