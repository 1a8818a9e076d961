"""Runs programs and clusters for tests. After a deadline, the whole process group is killed; all output is printed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.warm.client import WarmPopen

ROOT = Path(__file__).parent.parent

VARIABLES = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""Environment variables of all programs: they can import this checkout, and TensorFlow logs only errors."""

WARM_LAUNCH = ("-m", "tests.warm.launch")
"""The words for `tfdist launch` whose tasks are warm processes."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """The result of a program.

    Attributes:
        code: exit code.
        text: output on stdout and stderr.
    """

    code: int
    text: str


def start(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a program in a process group of its own. The program can import this checkout."""
    return WarmPopen(
        command,
        cwd=cwd,
        env={**os.environ, **VARIABLES, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, deadline_seconds: float) -> Finished:
    """Waits for the end of a process and prints its output. After the deadline, kills its process group and raises."""
    try:
        text, _ = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        print(text)
        raise AssertionError(f"expected {process.args} to end within {deadline_seconds:.0f} s, but it ran on") from None
    print(text)
    return Finished(process.returncode, text)


def run(command: list[str], *, cwd: Path, deadline_seconds: float, env: dict[str, str] | None = None) -> Finished:
    """Runs a program and waits for its end."""
    return finish(start(command, cwd=cwd, env=env), deadline_seconds=deadline_seconds)


def launch_command(*arguments: str) -> list[str]:
    """Returns the command line of `tfdist launch` with these arguments."""
    return [sys.executable, "-m", "tfdist", "launch", *arguments]


def launch(*arguments: str, cwd: Path, deadline_seconds: float, env: dict[str, str] | None = None) -> Finished:
    """Runs `tfdist launch` with warm tasks. The launcher gets the deadline, so that it ends its tasks itself."""
    command = [sys.executable, *WARM_LAUNCH, "--timeout-seconds", str(deadline_seconds), *arguments]
    return run(command, cwd=cwd, deadline_seconds=deadline_seconds + 20, env=env)
