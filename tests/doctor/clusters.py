"""Starts the tasks of a cluster as plain processes that run `tfdist doctor`, and reads what they print."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.processes import Finished, finish, start

# Far more time than any task needs, so that only a hang reaches the limit.
DEADLINE_SECONDS = 120.0
# A task with planted facts: its first argument is Python text with keyword arguments of Sources.
PROGRAM = """
import dataclasses, sys, time
from tfdist.doctor.checks import disk, threads, versions
from tfdist.doctor.checks.disk import Room
from tfdist.doctor.checks.threads import Threads
from tfdist.doctor.cli import main
from tfdist.doctor.facts import Sources
sys.exit(main(sys.argv[2:], sources=eval(f"Sources({sys.argv[1]})")))
"""


@contextlib.contextmanager
def held_ports(count: int) -> Iterator[list[int]]:
    """Yields ports that stay free for the test: each is bound as a launcher binds it, and nothing listens on it."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            ports.append(holder.getsockname()[1])
        yield ports


def tf_config(jobs: dict[str, list[str]], job: str, index: int) -> str:
    return json.dumps({"cluster": jobs, "task": {"type": job, "index": index}})


class Cluster:
    """The started tasks of a cluster.

    Args:
        folder: the working directory of all tasks.
        jobs: the addresses of each job.
    """

    def __init__(self, folder: Path, jobs: dict[str, list[str]]) -> None:
        self.folder = folder
        self.jobs = jobs
        self.processes = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(DEADLINE_SECONDS)

    def start(self, job: str, index: int, *options: str, sources: str = "", jobs=None, env=None) -> None:
        """Starts a task; `jobs` replaces the cluster in its TF_CONFIG."""
        base = {
            "TF_CONFIG": tf_config(jobs or self.jobs, job, index),
            "OMP_NUM_THREADS": "1",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TFDIST_LAUNCH_ID": "",
        }
        command = [sys.executable, "-c", PROGRAM, sources, *options]
        self.processes.append(start(command, cwd=self.folder, env={**base, **(env or {})}))

    def finish(self) -> list[Finished]:
        """Waits for all tasks and returns what they printed, in the order in which they were started."""
        return [finish(process, deadline_seconds=DEADLINE_SECONDS) for process in self.processes]


def lines(text: str, verdict: str) -> list[tuple[str, str, str]]:
    """Returns check, tasks and text of each printed finding with a verdict."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split("  ") if word.strip()]
        if words and words[0] == verdict:
            found.append((words[1], words[2], "  ".join(words[3:])))
    return found
