"""Compares a step of `fit` between the meetings of LocalSGD with a step on one device.

Two workers train with LocalSGD and never meet in the measured steps. They are compared with two trainings on one device
each, at the same time, with the rows of one worker in a step. Every process has one thread to compute. Runs alternate.
The time of a step is that of `fit` divided by the number of steps; with LocalSGD it includes the exchange at the end.

    python benchmarks/local_steps.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from two_workers import convolutions

from tfdist.cluster import Task
from tfdist.launch.ports import PortHold

ROWS = 128
WARMUP_STEPS = 5
DEADLINE_SECONDS = 300.0


def train(kind: str, steps: int, folder: Path, rank: int) -> None:
    """Trains and prints the milliseconds of a step; with LocalSGD as the worker that TF_CONFIG names.

    Args:
        kind: "one device" or "LocalSGD".
        steps: number of measured steps.
        folder: empty folder that both processes share.
        rank: 0 or 1.
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
    (folder / f"ready-{rank}").touch()
    while not (folder / f"ready-{1 - rank}").exists():
        time.sleep(0.001)
    # A callback of each batch would make the replicas exchange what it sees.
    begin = time.perf_counter()
    model.fit(rows, steps_per_epoch=steps, shuffle=False, verbose=0)
    print("RESULT", 1000 * (time.perf_counter() - begin) / steps, flush=True)
    (folder / f"done-{rank}").touch()
    # The two processes share the machine until both are measured; with LocalSGD they end together.
    while not is_local and not (folder / f"done-{1 - rank}").exists():
        model.fit(rows, steps_per_epoch=2, shuffle=False, verbose=0)
    if is_local:
        # A worker that ends makes the other one fail.
        strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None).numpy()
    os._exit(0)


def milliseconds_of(kind: str, steps: int) -> float:
    """Runs two processes at the same time and returns the mean of their milliseconds in a step."""
    with PortHold([Task("worker", rank) for rank in range(2)], host="localhost") as hold:
        ports = list(hold.ports.values())
    folder = tempfile.mkdtemp()
    processes = []
    for rank in range(2):
        cluster = {"cluster": {"worker": [f"localhost:{port}" for port in ports]}}
        task = {"task": {"type": "worker", "index": rank}}
        environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (os.path.dirname(os.path.dirname(os.path.abspath(__file__))), os.environ.get("PYTHONPATH")))
        )
        if kind == "LocalSGD":
            environment["TF_CONFIG"] = json.dumps({**cluster, **task})
        command = [sys.executable, os.path.abspath(__file__), "--train", kind, "--steps", str(steps)]
        command += ["--folder", folder, "--rank", str(rank)]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    found = []
    try:
        for process in processes:
            text, _ = process.communicate(timeout=DEADLINE_SECONDS)
            lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
            if process.returncode or not lines:
                raise RuntimeError(f"expected a result of {kind}, received exit code {process.returncode}:\n{text}")
            found.append(float(lines[0].split()[1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder)
    return statistics.mean(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each case (default: 5)")
    parser.add_argument("--steps", type=int, default=60, help="number of measured steps (default: 60)")
    parser.add_argument("--train", choices=("one device", "LocalSGD"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.steps, arguments.folder, arguments.rank)
    found: dict[str, list[float]] = {"one device": [], "LocalSGD": []}
    for run in range(arguments.runs):
        for kind, measured in found.items():
            measured.append(milliseconds_of(kind, arguments.steps))
            print(f"run {run + 1}, {kind}: {measured[-1]:.1f} ms per step", flush=True)
    medians = {kind: statistics.median(measured) for kind, measured in found.items()}
    print(
        f"medians: {medians['one device']:.1f} and {medians['LocalSGD']:.1f} ms per step; the step of LocalSGD takes "
        f"{medians['LocalSGD'] / medians['one device']:.3f} of the step on one device"
    )


if __name__ == "__main__":
    main()
