"""Starts programs on several workers whose logs can be read while they run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conftest import SURROUNDINGS
from tests.processes import VARIABLES
from tests.warm.client import WarmPopen

PROGRAM = Path(__file__).parent / "programs" / "training.py"
# Far more time than anything here needs, so that only a hang fails.
DEADLINE_SECONDS = 240.0


@dataclasses.dataclass
class Worker:
    """A program that runs.

    Attributes:
        process: the process.
        log: file of its output.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until the log has a match; fails if the process ends before."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            has_ended = self.process.poll() is not None
            found = re.search(pattern, self.text())
            if found:
                return found
            assert not has_ended, f"expected {pattern!r} in the log, but the process has ended"
            assert time.monotonic() < deadline, f"expected {pattern!r} in the log"
            time.sleep(0.1)

    def end(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        return self.process.wait(DEADLINE_SECONDS)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


Starter = Callable[[int, list[str]], list[str]]


@contextlib.contextmanager
def workers(
    folder: Path, addresses: list[str], *arguments: str, program: Path = PROGRAM, start: Starter | None = None
) -> Iterator[list[Worker]]:
    """Starts a program on every worker; at the end, kills what still runs and prints all logs.

    Args:
        folder: folder of the logs.
        addresses: address of each worker; one address for a program without a cluster.
        *arguments: arguments of the program.
        program: the program.
        start: changes the command line of a worker, such as to run it in a network namespace.
    """
    base = {key: value for key, value in os.environ.items() if key not in SURROUNDINGS}
    base |= VARIABLES
    started: list[Worker] = []
    try:
        for index in range(len(addresses)):
            log = folder / f"worker{index}.log"
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            env = {**base, "TF_CONFIG": json.dumps(config)} if len(addresses) > 1 else base
            command = [sys.executable, str(program), *arguments]
            with log.open("wb") as output:
                process = WarmPopen(
                    command if start is None else start(index, command),
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            started.append(Worker(process, log))
        yield started
    finally:
        for worker in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait(DEADLINE_SECONDS)
        for index, worker in enumerate(started):
            print(f"---- worker {index}: exit code {worker.process.returncode}\n{worker.text()}")
