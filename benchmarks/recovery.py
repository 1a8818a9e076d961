"""Measures the time from SIGKILL of a worker to the next new step of the training, and what it consists of.

    python benchmarks/recovery.py --runs 5

`tfdist launch --workers 2 --max-restarts 1` trains the convolutional network of `tfdist train` on the digits of
scikit-learn. Worker 1 is killed at a random step. Runs without and with `--standby` alternate.

detect: until the launcher says that worker 1 has failed. start: until both workers have a strategy again. restore:
until both say that they go on from a snapshot. step: until a step is complete that was not complete before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from tfdist.cluster.progress import read_progress  # noqa: E402

PHASES = ("detect", "start", "restore", "step")
DEADLINE_SECONDS = 180.0
# A line of each phase, and how many of them end it.
_ENDS = {
    "detect": (re.compile("worker 1 failed .killed by SIGKILL"), 1),
    "start": (re.compile("files with .* records"), 2),
    "restore": (re.compile("the training goes on from the snapshot"), 2),
}


class Lines:
    """The lines of a stream, with the time at which each one came.

    Args:
        stream: the stream, which a thread reads.
    """

    def __init__(self, stream: TextIO) -> None:
        self._lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self._lines.append((time.time(), line))

    def times(self, pattern: re.Pattern[str], *, after: float) -> list[float]:
        """Returns when lines came, after a time, that contain a pattern."""
        return [at for at, line in list(self._lines) if at > after and pattern.search(line)]

    def text(self) -> str:
        """Returns all lines."""
        return "".join(line for _, line in list(self._lines))


def measure(*, standby: bool, folder: Path, step: int) -> dict[str, float]:
    """Returns the seconds of each phase of one recovery.

    Args:
        standby: whether the launcher keeps standby processes.
        folder: an empty folder.
        step: worker 1 is killed after this step.

    Raises:
        RuntimeError: if the training does not go on.
    """
    # The lines of each worker are counted.
    options = [
        "--workers",
        "2",
        "--show",
        "all",
        "--max-restarts",
        "1",
        "--log-dir",
        "logs",
        *(["--standby"] if standby else []),
    ]
    words = [sys.executable, "-m", "tfdist", "launch", *options, "-m", "tfdist.train", "--epochs=100000"]
    process = subprocess.Popen(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = Lines(process.stdout)
    paths = [folder / "logs" / f"worker-{worker}.progress" for worker in range(2)]

    def last() -> tuple[int, float]:
        found = [one for one in map(read_progress, paths) if one is not None]
        return max(((one.step, one.recorded_at) for one in found), default=(-1, 0.0))

    def wait_for_step(wanted: int) -> float:
        end = time.monotonic() + DEADLINE_SECONDS
        while (found := last())[0] < wanted:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"expected step {wanted}, received step {found[0]}:\n{lines.text()}")
            time.sleep(0.002)
        return found[1]

    try:
        wait_for_step(step)
        if standby:
            _wait_for_standbys(process.pid)
        victim = _pid_of_worker_1(process.pid)
        before, killed = last()[0], time.time()
        os.kill(victim, signal.SIGKILL)
        ends = [killed]
        new_step = wait_for_step(before + 1)
        # A step of worker 0 that was under way when worker 1 was killed is no new one.
        while new_step <= killed or not lines.times(_ENDS["restore"][0], after=killed):
            time.sleep(0.002)
            new_step = wait_for_step(max(before + 1, last()[0]))
        for pattern, count in _ENDS.values():
            ends.append(lines.times(pattern, after=killed)[count - 1])
        ends.append(new_step)
        return {phase: ends[number + 1] - ends[number] for number, phase in enumerate(PHASES)}
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _children(pid: int) -> list[tuple[int, bytes, bytes]]:
    """Returns number, command line and environment of each child of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1]) == pid:
                found.append((int(entry.name), (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()))
    return found


def _pid_of_worker_1(launcher: int) -> int:
    task = b'"task": {"type": "worker", "index": 1}'
    return next(pid for pid, words, env in _children(launcher) if task in env and b"standby_program" not in words)


def _wait_for_standbys(launcher: int) -> None:
    """Waits until two standby processes have imported TensorFlow: they use no processor any more."""
    quiet_since, before = time.monotonic(), -1
    while time.monotonic() < quiet_since + 3:
        pids = [pid for pid, words, _ in _children(launcher) if b"standby_program" in words]
        used = 0
        for pid in pids:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
                used += int(fields[11]) + int(fields[12])
        if len(pids) < 2 or used != before:
            quiet_since, before = time.monotonic(), used
        time.sleep(0.1)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each case (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the steps (default: %(default)s)")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    measured: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for run in range(given.runs):
        step = draw.randint(30, 300)
        for standby in ((False, True), (True, False))[run % 2]:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(standby=standby, folder=Path(folder), step=step)
            measured[standby].append(found)
            phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.items())
            name = "standby" if standby else "cold"
            print(f"run {run + 1}, {name}: {sum(found.values()):.1f} s: {phases}", flush=True)
    table = Table()
    for column in ("", *PHASES, "all", "worst"):
        table.add_column(column, justify="right" if column else "left")
    for standby, runs in measured.items():
        medians = [f"{statistics.median(run[phase] for run in runs):.1f}" for phase in PHASES]
        totals = [sum(run.values()) for run in runs]
        name = "with --standby" if standby else "without"
        table.add_row(name, *medians, f"{statistics.median(totals):.1f}", f"{max(totals):.1f}")
    Console(width=100).print(table)
    print("seconds, medians of the runs")


if __name__ == "__main__":
    main()
