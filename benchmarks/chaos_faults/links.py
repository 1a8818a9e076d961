"""Cuts the link between the two hosts of a training, for seconds or for ever. The hosts are network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.chaos_faults import training_program as program
from benchmarks.chaos_faults.fault import Fault, Found, Trouble
from benchmarks.namespaces import Host, hosts
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.progress import read_progress

PORT = 5000
WORKERS = 2
DEADLINE_SECONDS = 300.0
SECONDS = 4.0


def available() -> bool:
    """Returns whether this machine can have network namespaces: root and iproute2."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc")))


def cut(fault: Fault, folder: Path, env: Mapping[str, str], found: Found) -> None:
    """Cuts the link of a worker in the midst of a training. The training goes on, or ends with 75 and goes on later.

    This function is the scheduler of the two hosts: if a worker ends with exit code 75, all start again.

    Args:
        fault: the fault.
        folder: the folder of the run.
        env: the environment variables of all workers.
        found: receives what is wrong.
    """
    with hosts(WORKERS, rate=None) as machines:
        attempts = _Attempts(folder, machines, env)
        try:
            attempts.start()
            # The first step compiles the training, and the last ones leave no time for the fault.
            step = 3 + int(fault.moment * (program.STEPS - 12))
            attempts.wait_for_step(step)
            _set_link(machines[1], "down")
            if fault.where == "for seconds":
                time.sleep(SECONDS)
                _set_link(machines[1], "up")
            codes = attempts.end(found)
            found.end = f"exit codes {codes}"
            text = attempts.text()
            if fault.where == "for ever":
                expected = all(code == RESTART_CODE for code in codes)
                found.check(expected, f"expected the exit code {RESTART_CODE} of both workers, received {codes}")
                named = "is out of reach" in text or "has ended" in text or "restart" in text
                found.check(named, "expected a line about the worker that is out of reach")
                _set_link(machines[1], "up")
            if any(codes):
                fine = all(code in (0, RESTART_CODE) for code in codes)
                found.check(fine, f"expected the exit codes 0 or {RESTART_CODE}, received {codes}")
                attempts.start()
                codes = attempts.end(found)
                found.end += f", then {codes}"
                found.check(not any(codes), f"expected success after the restart, received {codes}", Trouble.WRONG)
        finally:
            attempts.kill()


class _Attempts:
    """Starts both workers, each on its host, and starts them again."""

    def __init__(self, folder: Path, machines: list[Host], env: Mapping[str, str]) -> None:
        self._folder, self._machines, self._env = folder, machines, env
        self._launch_id, self._number = uuid.uuid4().hex, -1
        self._workers: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        self._number += 1
        addresses = [f"{machine.address}:{PORT}" for machine in self._machines]
        self._workers = []
        for index, machine in enumerate(self._machines):
            self._progress(index).unlink(missing_ok=True)
            task = {"type": "worker", "index": index}
            env = {
                **self._env,
                "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
                "TFDIST_LAUNCH_ID": self._launch_id,
                "TFDIST_ATTEMPT": str(self._number),
                "TFDIST_PROGRESS_FILE": str(self._progress(index)),
                "OMP_NUM_THREADS": "1",
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
            }
            words = [sys.executable, program.__file__, "--folder", str(self._folder)]
            with (self._folder / f"worker-{index}.attempt-{self._number}.log").open("w") as log:
                self._workers.append(
                    machine.popen(
                        [*words, "--strategy", "multi_worker_mirrored"], cwd=self._folder, env=env,
                        stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                    )
                )  # fmt: skip

    def _progress(self, index: int) -> Path:
        return self._folder / f"worker-{index}.progress"

    def wait_for_step(self, step: int) -> None:
        for _ in self._polls():
            found = [read_progress(self._progress(index)) for index in range(WORKERS)]
            if max((one.step for one in found if one is not None), default=0) >= step:
                return

    def _polls(self) -> Iterator[None]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline and any(worker.poll() is None for worker in self._workers):
            yield
            time.sleep(0.01)

    def end(self, found: Found) -> list[int]:
        for _ in self._polls():
            pass
        if any(worker.poll() is None for worker in self._workers):
            found.add(Trouble.HANG, f"the workers did not end within {DEADLINE_SECONDS:.0f} s")
        self.kill()
        return [worker.wait() for worker in self._workers]

    def kill(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()

    def text(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("worker-*.log")))


def _set_link(machine: Host, state: str) -> None:
    """Sets the port of a host at the switch up or down."""
    prefix, _, number = machine.namespace.rpartition("-")
    command = ["ip", "netns", "exec", f"{prefix}-sw", "ip", "link", "set", f"port{number}", state]
    subprocess.run(command, check=True, capture_output=True)
