"""Runs `tfdist launch` with small Python programs and a hard deadline, and ends all processes after each test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import tfdist

DEADLINE_SECONDS = 30.0

# The beginning of the program of every task. A task waits for files in the folder of its program, never for a fixed
# time: `say` writes such a file, and `wait_for` waits for one.
PRELUDE = """
import json, os, signal, subprocess, sys, time
config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
here = os.path.dirname(os.path.abspath(__file__))
end = time.monotonic() + 60

def say(name, text=""):
    path = os.path.join(here, name)
    with open(path + "~", "w") as file:
        file.write(str(text))
    os.rename(path + "~", path)

def wait_for(name):
    while not os.path.exists(os.path.join(here, name)):
        if time.monotonic() > end:
            sys.exit("waited too long for " + name)
        time.sleep(0.01)

def forever():
    wait_for("a file that nobody writes")
"""


@dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


class Started:
    """A running launcher."""

    def __init__(self, process: subprocess.Popen[str], place: Path) -> None:
        self.process = process
        self._place = place

    def wait_for(self, name: str) -> str:
        """Waits until a task has written a file, and returns its text."""
        path = self._place / name
        wait_until(path.exists, f"a task has written the file {name}")
        return path.read_text()

    def end(self) -> Finished:
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        print(out, err, sep="\n---- stderr ----\n")
        return Finished(self.process.returncode, out, err)


class Launcher:
    """Starts launchers. All of their processes have the same mark in their environment."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._mark = f"LAUNCH_TEST={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def write(self, program: str, name: str = "task.py") -> Path:
        path = self.place / name
        path.write_text(PRELUDE + program)
        return path

    def start(self, *args: str, env: dict[str, str] | None = None, stdout: int = subprocess.PIPE) -> Started:
        cleared = ("TF_CONFIG", "NO_COLOR", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        base = {key: value for key, value in os.environ.items() if key not in cleared}
        key, _, value = self._mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdist.launch", *args],
            cwd=self.place,
            env={**base, "PYTHONPATH": str(Path(tfdist.__file__).parents[1]), key: value, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return Started(process, self.place)

    def run(self, *args: str, program: str | None = None, env: dict[str, str] | None = None) -> Finished:
        """Runs a launcher to its end. A program, if given, becomes the command of every task."""
        command = ("--log-dir", "logs", *args, "--", str(self.write(program))) if program is not None else args
        return self.start(*command, env=env).end()

    def log(self, name: str) -> str:
        return (self.place / "logs" / name).read_text()

    def alive(self) -> dict[int, str]:
        """Returns the process ids and command lines of the launchers and their descendants that are alive."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def clean_up(self) -> None:
        for process in self._started:
            process.kill()
        for pid in self.alive():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self._started:
            process.wait(DEADLINE_SECONDS)
            for pipe in (process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def wait_until(condition: Callable[[], object], description: str) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"expected within {DEADLINE_SECONDS:g} s that {description}, received no such state")
        time.sleep(0.01)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    result = Launcher(tmp_path)
    try:
        yield result
    finally:
        for log in sorted(tmp_path.rglob("*.log")):
            print(f"---- {log.name} ----\n{log.read_text(errors='replace')}")
        result.clean_up()
