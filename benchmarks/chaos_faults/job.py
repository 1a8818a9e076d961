"""A job: `tfdist launch` with all of its processes, which are found by a mark in their environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.chaos_faults.fault import Found, Trouble
from tfdist.cluster.progress import read_progress

ROOT = Path(__file__).parents[2]
MARK = "TFDIST_CHAOS"
# Variables of the program that runs chaos.py, which must not reach the job.
_CLEARED = ("TF_CONFIG", "TFDIST_LAUNCH_ID", "TFDIST_ATTEMPT", "TFDIST_PROGRESS_FILE")
_POLL_SECONDS = 0.005
# The guard of a killed launcher gives the tasks --grace-seconds, and the kernel needs some time, too.
ORPHAN_SECONDS = 25.0


@dataclasses.dataclass(frozen=True)
class Process:
    """A process of a job.

    Attributes:
        pid: its number.
        words: its command line.
        env: its environment variables, as they were when it was started.
    """

    pid: int
    words: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def task(self) -> str:
        """Its task, such as "worker 0"; "" for the launcher, the guard, standby processes, and children of tasks."""
        text = self.env.get("TF_CONFIG", "")
        if not text or self.is_standby or os.getsid(self.pid) != self.pid:
            return ""
        task = json.loads(text)["task"]
        return f"{task['type']} {task['index']}"

    @property
    def is_standby(self) -> bool:
        """Whether it was started as a standby process."""
        return any(word.endswith("standby_program.py") for word in self.words)

    @property
    def is_guard(self) -> bool:
        """Whether it is the guard of a launcher."""
        return any(word.endswith("sweep.py") for word in self.words)

    def send(self, number: int) -> None:
        """Sends it a signal, if it still exists."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Job:
    """One job after the other in one folder; at the end, all processes are killed.

    Args:
        folder: the folder of the run, in which the logs are.
        options: options of `tfdist launch`.
        command: the command of the tasks.
        deadline_seconds: how long one launch may take.
        env: further environment variables.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        command: Sequence[str],
        *,
        deadline_seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.options, self.command = folder, list(options), list(command)
        self._deadline_seconds = deadline_seconds
        self._mark = uuid.uuid4().hex
        base = {name: value for name, value in os.environ.items() if name not in _CLEARED}
        self.env = {**base, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", **(env or {}), MARK: self._mark}
        self._started: list[subprocess.Popen[bytes]] = []
        self._deadline = 0.0
        # The time of SIGKILL, the last step before it, and the number of logs then.
        self._struck: tuple[float, int, int] | None = None
        self.recovery_seconds: float | None = None
        self.was_killed = False
        """Whether a launcher was killed, which then removes no files."""

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        """The launcher that was started last."""
        return self._started[-1]

    def logs(self, start: int | None = None) -> Path:
        """Returns the directory of the logs of a start of the launcher; None is the last one."""
        return self.folder / f"logs-{len(self._started) - 1 if start is None else start}"

    def start(self, *options: str, command: Sequence[str] = ()) -> None:
        """Starts the launcher, for the first time or again.

        Args:
            *options: options of `tfdist launch` besides those of the job.
            command: another command of the tasks.
        """
        logs = self.folder / f"logs-{len(self._started)}"
        words = [sys.executable, "-m", "tfdist", "launch", "--log-dir", str(logs), *self.options, *options, "--"]
        self._spawn([*words, *(command or self.command)], self.folder / f"launcher-{len(self._started)}")

    def _spawn(self, words: Sequence[str], output: Path) -> None:
        with open(f"{output}.out", "wb") as out, open(f"{output}.err", "wb") as err:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        self._started.append(process)
        self._deadline = time.monotonic() + self._deadline_seconds

    def kill_launcher(self) -> None:
        """Kills the launcher alone."""
        self.was_killed = True
        self.launcher.kill()
        self.launcher.wait()

    def processes(self) -> list[Process]:
        """Returns the processes of the job that live."""
        found = []
        mark = f"{MARK}={self._mark}".encode()
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit() or mark not in (entry / "environ").read_bytes().split(b"\0"):
                    continue
                if (entry / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                    continue
                variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                env = dict(one.split("=", 1) for one in variables if "=" in one)
                found.append(Process(int(entry.name), tuple(words), env))
            except OSError:
                continue
        return found

    def find(self, which: Callable[[Process], bool]) -> Process | None:
        """Waits for a process; None if the launcher has ended or the deadline has come."""
        while True:
            for process in self.processes():
                try:
                    if which(process):
                        return process
                except ProcessLookupError:
                    continue
            if not self._goes_on():
                return None
            time.sleep(_POLL_SECONDS)

    def find_task(self, name: str) -> Process | None:
        """Waits for the process of a task, such as "worker 0"."""
        return self.find(lambda process: process.task == name)

    def step(self) -> int:
        """Returns the last step that a worker has completed since all tasks have started; -1 if there is none."""
        found = [read_progress(path) for path in self.logs().glob("worker-*.progress")]
        return max((one.step for one in found if one is not None), default=-1)

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Waits for a condition, and returns whether it came before the end of the launcher and the deadline."""
        while not condition():
            if not self._goes_on():
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def strike(self, process: Process | None, number: int) -> None:
        """Sends a signal to a process, and begins to measure the recovery after SIGKILL."""
        if process is None:
            return
        step = self.step()
        process.send(number)
        if number == signal.SIGKILL and step >= 0:
            self._struck = time.time(), step, len(self._worker_logs())

    def end(self, found: Found) -> int | None:
        """Waits for the end of the launcher, kills it after the deadline, and returns its exit code."""
        while self._goes_on():
            time.sleep(_POLL_SECONDS)
        if self.launcher.poll() is None:
            found.add(Trouble.HANG, f"the launcher did not end within {self._deadline_seconds:.0f} s")
            self.kill_all()
        found.recovery_seconds = self.recovery_seconds
        return self.launcher.wait()

    def check_no_orphans(self, found: Found) -> None:
        """Checks that no process is left after the end of the launcher, and kills those that are."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in left:
            found.add(Trouble.ORPHAN, f"process {process.pid} is left: {' '.join(process.words)}")
        self.kill_all()

    def messages(self, start: int = -1) -> str:
        """Returns what a start of the launcher has written to standard error."""
        number = start if start >= 0 else len(self._started) + start
        return (self.folder / f"launcher-{number}.err").read_text(errors="replace")

    def text(self) -> str:
        """Returns the logs of all tasks of all starts."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("logs-*/*.log")))

    def restarts(self) -> int:
        """Returns how often the launcher that was started last has started the tasks again."""
        return max(
            (int(path.name.partition("attempt-")[2].partition(".")[0] or 0) for path in self._worker_logs()), default=0
        )

    def kill_all(self) -> None:
        """Kills every process of the job."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            for process in left:
                process.send(signal.SIGKILL)
            time.sleep(0.02)
        for started in self._started:
            if started.poll() is None:
                started.kill()
            started.wait()

    def _goes_on(self) -> bool:
        self._measure()
        return self.launcher.poll() is None and time.monotonic() < self._deadline

    def _measure(self) -> None:
        if self._struck is None or self.recovery_seconds is not None:
            return
        at, step, before = self._struck
        # The launcher removes the records of a task before it makes its next log.
        new = self._worker_logs()[before:]
        for path in {path.with_name(f"{path.name.partition('.')[0]}.progress") for path in new}:
            one = read_progress(path)
            if one is not None and one.step > step:
                self.recovery_seconds = round(one.recorded_at - at, 3)

    def _worker_logs(self) -> list[Path]:
        logs = list(self.logs().glob("worker-*.log"))
        return sorted(logs, key=_attempt_of)


def _attempt_of(log: Path) -> int:
    """Returns how often the tasks had been restarted before the start whose log it is."""
    return int(log.name.partition("attempt-")[2].partition(".")[0] or 0)
