"""Processes that stay alive and run cells one after another. A cell that hangs is reported, and the next cells run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conformance.case import Case, Topology, trains_on_a_gpu
from tests.processes import ROOT
from tests.warm.client import WarmPopen

START_SECONDS = 120.0
HEALTH_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of running a cell.

    Attributes:
        values: the value that each rank returned; empty if a rank failed.
        error: the error of the first rank that raised.
        hung: whether a rank did not answer within the deadline.
        log: the output of the processes after an error.
    """

    values: tuple[Any, ...] = ()
    error: str = ""
    hung: bool = False
    log: str = ""


class ResidentCluster:
    """The processes of one topology. They start with the first case, and again after a failure.

    Args:
        flavour: "oracle", "stock" or "tfdist".
        topology: number of processes and their strategy.
        deadline_seconds: time limit of a cell.
        python: path of the Python interpreter.
        environment: environment variables of the processes; variables such as TF_CONFIG are added to it.
    """

    def __init__(
        self,
        flavour: str,
        topology: Topology,
        *,
        deadline_seconds: float = 180.0,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._flavour, self._topology, self._deadline = flavour, topology, deadline_seconds
        self._python, self._environment = python, dict(os.environ) if environment is None else environment
        self._processes: list[subprocess.Popen[str]] = []
        self._folder = Path()
        self._count = 0
        self._stack = contextlib.ExitStack()

    def run(self, case: Case, topology: Topology | None = None) -> Outcome:
        """Runs a case on every rank. The oracle also gets the topology whose result it has to compute."""
        try:
            if not self._processes:
                self._start()
            return self._run(case, topology or self._topology)
        except TimeoutError as error:
            outcome = Outcome(hung=True, error=str(error), log=self._logs())
        except ChildProcessError as error:
            outcome = Outcome(error=str(error), log=self._logs())
        self.stop()
        return outcome

    def _run(self, case: Case, topology: Topology) -> Outcome:
        self._count += 1
        folder = self._folder / f"{self._count:03d}-{case.name}"
        (folder / "files").mkdir(parents=True)
        request = json.dumps({"case": case.name, "folder": str(folder), "topology": topology.name})
        ranks = range(self._topology.ranks)
        for rank in ranks:
            with contextlib.suppress(BrokenPipeError):
                stdin = self._processes[rank].stdin
                assert stdin is not None
                stdin.write(request + "\n")
                stdin.flush()
        deadline = time.monotonic() + self._deadline
        answers = [json.loads(self._wait(folder / f"result-{rank}", deadline).read_text()) for rank in ranks]
        errors = [answer["error"] for answer in answers if "error" in answer]
        if not errors:
            return Outcome(values=tuple(answer["value"] for answer in answers))
        outcome = Outcome(error=errors[0], log=self._logs())
        try:
            assert self._topology.ranks == len(errors) or self._flavour == "oracle"
            deadline = time.monotonic() + HEALTH_SECONDS
            if self._flavour != "oracle":
                for rank in ranks:
                    assert json.loads(self._wait(folder / f"healthy-{rank}", deadline).read_text())["healthy"]
        except (AssertionError, TimeoutError, ChildProcessError):
            self.stop()
        return outcome

    def _wait(self, path: Path, deadline: float) -> Path:
        while not path.exists():
            ended = [process for process in self._processes if process.poll() is not None]
            if ended and not path.exists():
                raise ChildProcessError(f"a process ended with exit code {ended[0].returncode}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {self._deadline:g} s")
            time.sleep(0.01)
        return path

    def _start(self) -> None:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        topology = self._topology
        tasks: list[tuple[str, int]] = [("worker", i) for i in range(topology.workers)]
        if topology.ps:
            tasks = [("chief", 0), *tasks, *(("ps", i) for i in range(topology.ps))]
        jobs: dict[str, list[str]] = {}
        for (job, _), port in zip(tasks, _free_ports(len(tasks)), strict=True):
            jobs.setdefault(job, []).append(f"127.0.0.1:{port}")
        for job, index in tasks:
            environment = {
                **self._environment,
                "PYTHONPATH": str(ROOT),
                "CUDA_VISIBLE_DEVICES": "-1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                # Each process has few threads, since all processes share the cores.
                "TF_NUM_INTRAOP_THREADS": "2",
            }
            if self._flavour == "tfdist" and trains_on_a_gpu():
                del environment["CUDA_VISIBLE_DEVICES"]
            if len(tasks) > 1:
                task = {"type": job, "index": index}
                environment["TF_CONFIG"] = json.dumps({"cluster": jobs, "task": task})
            command = ["-m", "tests.conformance.resident", self._flavour, topology.name, str(self._folder), str(index)]
            with (self._folder / f"log-{job}-{index}").open("wb") as log:
                self._processes.append(
                    WarmPopen(
                        [self._python, *command],
                        cwd=self._folder,
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )
        deadline = time.monotonic() + START_SECONDS
        for rank in range(topology.ranks):
            self._wait(self._folder / f"ready-{rank}", deadline)

    def _logs(self) -> str:
        parts = []
        for path in sorted(self._folder.glob("log-*")):
            parts.append(f"==== {path.name}\n{path.read_text(errors='replace')[-6000:]}")
        return "\n".join(parts)

    def stop(self) -> None:
        """Kills every process and its children."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
        self._processes = []
        self._stack.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
