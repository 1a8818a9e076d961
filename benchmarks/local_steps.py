"""Compares a step of `fit` between the meetings of LocalSGD with a step on one device.

Two workers train with LocalSGD and never meet in the measured steps. They are compared with two trainings on one device
each, at the same time, with the rows of one worker in a step. Every process has one thread to compute. All processes
live during the whole measurement, and the two pairs train in turn, so that a machine whose speed changes slows both.
The time of a step is that of `fit` divided by the number of steps; with LocalSGD it includes the exchange at the end.

    python benchmarks/local_steps.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from two_workers import convolutions

from tfdist.cluster import Task
from tfdist.launch.ports import PortHold

ROWS = 128
WARMUP_STEPS = 5
DEADLINE_SECONDS = 300.0
KINDS = ("one device", "LocalSGD")


def train(kind: str, steps: int) -> None:
    """Trains at each line of the standard input, and prints the milliseconds of a step.

    Args:
        kind: "one device", or "LocalSGD" as the worker that TF_CONFIG names.
        steps: number of measured steps.
    """
    import tfdist
    from tfdist.averaging import LocalSGD

    is_local = kind == "LocalSGD"
    strategy = tfdist.create_strategy("multi_worker_mirrored" if is_local else "one_device")
    import tensorflow as tf

    with strategy.scope():
        model = convolutions(image_shape=(48, 48, 3), num_classes=4)
        adam = tf.keras.optimizers.Adam()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(LocalSGD(adam, every=1_000_000) if is_local else adam, loss, metrics=["accuracy"])
    images = tf.random.uniform((ROWS, 48, 48, 3), maxval=255.0, seed=1)
    labels = tf.random.uniform((ROWS,), maxval=4, dtype=tf.int64, seed=2)
    data = tf.data.Dataset.from_tensors((images, labels)).repeat()
    rows = strategy.distribute_datasets_from_function(lambda context: data)
    model.fit(rows, steps_per_epoch=WARMUP_STEPS, shuffle=False, verbose=0)
    print("RESULT 0", flush=True)
    for _ in sys.stdin:
        # A callback of each batch would make the replicas exchange what it sees.
        begin = time.perf_counter()
        model.fit(rows, steps_per_epoch=steps, shuffle=False, verbose=0)
        print("RESULT", 1000 * (time.perf_counter() - begin) / steps, flush=True)
    # A worker that ends makes the other one fail, which nobody reads any more.
    os._exit(0)


class Pair:
    """Two processes that train at the same time, each time they are asked to."""

    def __init__(self, kind: str, steps: int, log: IO[str]) -> None:
        self._kind, self._log = kind, log
        with PortHold([Task("worker", rank) for rank in range(2)], host="localhost") as hold:
            ports = list(hold.ports.values())
        self.processes = []
        for rank in range(2):
            one_thread = dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1")
            environment = {**os.environ, **one_thread}
            folders = str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
            if kind == "LocalSGD":
                cluster = {"worker": [f"localhost:{port}" for port in ports]}
                environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
            command = [sys.executable, os.path.abspath(__file__), "--train", kind, "--steps", str(steps)]
            self.processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            )
        self._results()

    def milliseconds(self) -> float:
        """Lets both processes train, and returns the mean of their milliseconds in a step."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("train\n")
            process.stdin.flush()
        return statistics.mean(self._results())

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _results(self) -> list[float]:
        timer = threading.Timer(DEADLINE_SECONDS, self.kill)
        timer.start()
        try:
            return [self._result(process) for process in self.processes]
        finally:
            timer.cancel()

    def _result(self, process: subprocess.Popen[str]) -> float:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("RESULT "):
                return float(line.split()[1])
        self._log.seek(0)
        raise RuntimeError(
            f"expected a result of {self._kind} within {DEADLINE_SECONDS:.0f} s, received none:\n{self._log.read()}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=12, help="number of runs of each case (default: 12)")
    parser.add_argument("--steps", type=int, default=20, help="number of measured steps (default: 20)")
    parser.add_argument("--train", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.steps)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    pairs = {}
    with tempfile.TemporaryFile("w+") as log:
        try:
            for kind in KINDS:
                pairs[kind] = Pair(kind, arguments.steps, log)
            for run in range(arguments.runs):
                for kind, pair in pairs.items():
                    found[kind].append(pair.milliseconds())
                    print(f"run {run + 1}, {kind}: {found[kind][-1]:.1f} ms per step", flush=True)
        finally:
            for pair in pairs.values():
                pair.kill()
    one, local = (statistics.median(found[kind]) for kind in KINDS)
    ratio = statistics.median(second / first for first, second in zip(*found.values(), strict=True))
    print(
        f"medians: {one:.1f} and {local:.1f} ms per step; the step of LocalSGD takes {local / one:.3f} of the step on "
        f"one device, and the median of the ratios of each run is {ratio:.3f}"
    )


if __name__ == "__main__":
    main()
