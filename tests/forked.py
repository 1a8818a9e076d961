"""Runs an action in a forked child process. For tests that import no TensorFlow, whose threads a fork would lose."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

DEADLINE_SECONDS = 60


def start(action: Callable[[], Any]) -> int:
    """Starts an action in a child process, which never returns to the test; returns the process id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child


def end(child: int) -> int:
    """Waits for the end of a child process and returns its exit code, negative for a signal."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"expected process {child} to end within {DEADLINE_SECONDS} s")


def run(action: Callable[[], Any]) -> int:
    """Runs an action in a child process and returns its exit code."""
    return end(start(action))
