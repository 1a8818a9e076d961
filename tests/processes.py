"""Runs programs and clusters of them for tests: a hard deadline, the whole process group ended, every log printed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a program ended.

    Attributes:
        code: its exit code.
        text: what it wrote to stdout and stderr.
    """

    code: int
    text: str


def start(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a program in a process group of its own, this checkout and its folder of programs importable."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, deadline_seconds: float) -> Finished:
    """Waits for the end; past the deadline kills the whole group and fails. Prints what was written."""
    try:
        text, _ = process.communicate(timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        print(text)
        raise AssertionError(f"expected an end within {deadline_seconds:.0f} s: {process.args}") from None
    print(text)
    return Finished(process.returncode, text)


def run(command: list[str], *, cwd: Path, deadline_seconds: float, env: dict[str, str] | None = None) -> Finished:
    """Runs a program to its end."""
    return finish(start(command, cwd=cwd, env=env), deadline_seconds=deadline_seconds)


def launch_command(*arguments: str) -> list[str]:
    """The command line of `tfdist launch` with these arguments."""
    return [sys.executable, "-m", "tfdist", "launch", *arguments]


def launch(*arguments: str, cwd: Path, deadline_seconds: float, env: dict[str, str] | None = None) -> Finished:
    """Runs `tfdist launch`, which is told a deadline of its own so that it ends its ranks itself."""
    command = launch_command("--timeout-seconds", str(deadline_seconds), *arguments)
    return run(command, cwd=cwd, deadline_seconds=deadline_seconds + 20, env=env)
