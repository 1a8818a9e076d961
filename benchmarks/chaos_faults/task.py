"""Stands in for a training in plain Python: a worker or an evaluator of a cluster that `tfdist launch` has started.

A worker counts steps in a state that has every step in it, keeps it in a snapshot in memory and on disk, and goes on
from there. After each step the workers wait for each other, as an all-reduce does; a worker whose peer makes no step
ends with the code that asks for a restart, as StallWatch does. After SIGTERM a worker saves its state and ends with
that code, as AutoResume does. The evaluator reads every snapshot of worker 0 and checks it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.manifest import BrokenSnapshotError
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.part import Part, index_of, size_of_values, write_part
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import launched
from tfdist.cluster.progress import ProgressFile, read_progress

SIZE = 1000
EVERY_STEPS = 4
DISK_EVERY_STEPS = 12
POLL_SECONDS = 0.002
# A peer that has made no step at all may still be starting.
STALL_SECONDS, START_SECONDS = 3.0, 8.0


def first_state(worker: int) -> np.ndarray:
    """Returns the state of a worker before its first step."""
    return np.arange(SIZE, dtype="uint64") + np.uint64(worker)


def next_state(state: np.ndarray, step: int) -> np.ndarray:
    """Returns the state after a step, in which every step before has left its mark."""
    return state * np.uint64(6364136223846793005) + np.uint64(step)


def state_after(worker: int, steps: int) -> np.ndarray:
    """Returns the state of a worker after so many steps without an interruption."""
    state = first_state(worker)
    for step in range(1, steps + 1):
        state = next_state(state, step)
    return state


def snapshots_of(folder: Path, worker: int) -> Path:
    """Returns the directory of the snapshots of a worker."""
    return folder / f"run-{worker}"


class Worker:
    """A worker.

    Args:
        folder: the folder of the run.
        index: index of the worker.
        workers: number of workers.
    """

    def __init__(self, folder: Path, index: int, workers: int) -> None:
        self._folder, self._index = folder, index
        me = launched()
        assert me is not None and me.progress_file is not None
        self._progress = ProgressFile(me.progress_file)
        self._peers = [folder / f"sync-{me.incarnation}-{other}" for other in range(workers) if other != index]
        directory = snapshots_of(folder, index)
        directory.mkdir(exist_ok=True)
        self._memory = MemoryTier(str(directory), worker=index)
        self._disk = DiskTier(directory, keep=2)
        self._sync = ProgressFile(folder / f"sync-{me.incarnation}-{index}")
        self._is_terminated = False

    def terminate(self, *_: object) -> None:
        """Notes a SIGTERM."""
        self._is_terminated = True

    def newest(self) -> tuple[np.ndarray, int]:
        """Returns the state to go on from, and its step."""
        part, stored = self._memory.newest(), self._disk.newest(model="task")
        if stored is not None and (part is None or stored.manifest.step > part.step):
            part = stored.part("worker-0")
        return (first_state(self._index), 0) if part is None else (np.array(part.values["state"]), part.step)

    def keep(self, state: np.ndarray, step: int, *, on_disk: bool, finished: bool = False) -> None:
        """Keeps a snapshot."""
        part = Part(step=step, values={"state": state}, notes={"worker": self._index})
        self._memory.write(part)
        if on_disk:
            buffer = memoryview(bytearray(size_of_values(part.values) + len(index_of(part))))
            self._disk.write(step, {"worker-0": buffer[: write_part(part, buffer)]}, model="task", finished=finished)

    def train(self, steps: int, pace_seconds: float) -> None:
        """Makes the steps that are missing, and writes the result."""
        signal.signal(signal.SIGTERM, self.terminate)
        state, begun = self.newest()
        print(f"worker {self._index} goes on from step {begun}", flush=True)
        for step in range(begun + 1, steps + 1):
            time.sleep(pace_seconds)
            state = next_state(state, step)
            self._progress.record(step)
            self._sync.record(step)
            self._wait_for_peers(step, state)
            if self._is_terminated:
                self.keep(state, step, on_disk=True)
                print(f"worker {self._index} has saved step {step}", flush=True)
                sys.exit(RESTART_CODE)
            if step % EVERY_STEPS == 0 and step < steps:
                self.keep(state, step, on_disk=step % DISK_EVERY_STEPS == 0)
        # A worker that has nothing left to do must not look as if it did not start.
        self._sync.record(steps)
        self.keep(state, steps, on_disk=True, finished=True)
        result = self._folder / f"result-{self._index}"
        result.with_suffix(".new").write_bytes(state.tobytes())
        os.replace(result.with_suffix(".new"), result)
        self._memory.clear()
        print(f"worker {self._index} is finished", flush=True)

    def _wait_for_peers(self, step: int, state: np.ndarray) -> None:
        changed, before = time.monotonic(), [-1] * len(self._peers)
        while True:
            found = [read_progress(path) for path in self._peers]
            steps = [-1 if one is None else one.step for one in found]
            if min(steps, default=step) >= step or self._is_terminated:
                return
            now = time.monotonic()
            if steps != before:
                changed, before = now, steps
            limit = START_SECONDS if min(steps) < 0 else STALL_SECONDS
            if now - changed > limit:
                print(f"worker {self._index}: expected its peer at step {step} within {limit:g} s, received none.")
                self.keep(state, step, on_disk=True)
                sys.exit(RESTART_CODE)
            time.sleep(POLL_SECONDS)


def evaluate(folder: Path, steps: int) -> None:
    """Checks the snapshots of worker 0 while they are written, until the last one."""
    directory, step = snapshots_of(folder, 0), -1
    directory.mkdir(exist_ok=True)
    while step < steps:
        time.sleep(POLL_SECONDS * 5)
        stored = DiskTier(directory, keep=2).newest(model="task")
        if stored is None or stored.manifest.step == step:
            continue
        try:
            part = stored.part("worker-0")
        except BrokenSnapshotError:
            if stored.folder.exists():
                raise
            continue
        step = stored.manifest.step
        if part.step != step or part.values["state"].tobytes() != state_after(0, step).tobytes():
            (folder / "torn").write_text(f"the evaluator has loaded a wrong snapshot of step {step}")
    print(f"evaluated step {step}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace-seconds", type=float, default=0.01)
    given = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    if config["task"]["type"] == "evaluator":
        evaluate(given.folder, given.steps)
        return
    try:
        worker = Worker(given.folder, config["task"]["index"], len(config["cluster"]["worker"]))
    except ValueError as error:
        sys.exit(str(error))
    worker.train(given.steps, given.pace_seconds)


if __name__ == "__main__":
    main()
