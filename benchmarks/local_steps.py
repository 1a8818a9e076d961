"""Compares `fit` between the meetings of LocalSGD with `fit` on one device.

Two workers train with LocalSGD and never meet in the measured epochs. They are compared with two trainings on one
device each, at the same time, with the rows of one worker in a step. Every process has one thread to compute. Runs
alternate.

    python benchmarks/local_steps.py
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

from two_workers import FLAGS

ROWS = 128
TRAIN = ("-m", "tfdist.train", *(flag for flag in FLAGS if "global_batch_size" not in flag))
ALONE = ("--strategy=one_device", f"--global_batch_size={ROWS}")
LOCAL = (f"--global_batch_size={2 * ROWS}", "--local_steps=1000000")
RATE = re.compile(r"samples/s\s+│ ([\d,]+)")


def environment() -> dict[str, str]:
    """Returns the environment of a process with one thread to compute, which finds the model of two_workers.py."""
    path = os.pathsep.join(filter(None, (os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}


def rate_of(commands: list[list[str]]) -> float:
    """Runs commands at the same time and returns the sum of their samples per second."""
    processes = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    total = 0.0
    for process in processes:
        text, _ = process.communicate(timeout=330)
        found = RATE.search(text)
        if process.returncode or not found:
            raise RuntimeError(f"expected samples/s in the output, received exit code {process.returncode}:\n{text}")
        total += float(found[1].replace(",", ""))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each case (default: 5)")
    parser.add_argument("--model", default="two_workers:convolutions", help="model of tfdist train")
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {"one device": [], "LocalSGD": []}
    with tempfile.TemporaryDirectory() as scratch:
        launch = ["-m", "tfdist", "launch", "--workers", "2", "--timeout-seconds", "300", "--log-dir", scratch]
        for run in range(arguments.runs):
            model = f"--model={arguments.model}"
            alone = [
                [sys.executable, *TRAIN, model, f"--model_dir={scratch}/alone-{run}-{rank}", *ALONE] for rank in (0, 1)
            ]
            local = [[sys.executable, *launch, *TRAIN, model, f"--model_dir={scratch}/local-{run}", *LOCAL]]
            for kind, commands in (("one device", alone), ("LocalSGD", local)):
                rates[kind].append(rate_of(commands))
                print(f"run {run + 1}, {kind}: {rates[kind][-1]:,.0f} samples/s", flush=True)
    medians = {kind: statistics.median(measured) for kind, measured in rates.items()}
    print(
        f"medians: {medians['one device']:,.0f} and {medians['LocalSGD']:,.0f} samples/s; the step of LocalSGD takes "
        f"{medians['one device'] / medians['LocalSGD']:.3f} of the step on one device"
    )


if __name__ == "__main__":
    main()
