"""Samples a second of two workers on this machine against one worker that has all of its CPUs, in alternating runs.

Shows what the launcher's division of CPU threads is for: with `--threads-per-rank 0` every worker starts as many
threads as there are CPUs.

    python benchmarks/two_workers.py
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile

KINDS = {
    "one worker": ("--workers", "1"),
    "two workers": ("--workers", "2"),
    "two workers, threads not divided": ("--workers", "2", "--threads-per-rank", "0"),
}
# A model that computes for a while, so that it is the CPUs that are shared and not the waiting.
FLAGS = ("--data=synthetic", "--image_shape=48,48,3", "--num_classes=4", "--global_batch_size=64", "--epochs=2")


def measure(options: tuple[str, ...], scratch: str) -> float:
    command = [sys.executable, "-m", "tfdist", "launch", *options, "--timeout-seconds", "300", "--log-dir", scratch]
    flags = (*FLAGS, f"--model_dir={scratch}/model")
    ended = subprocess.run([*command, "-m", "tfdist.train", *flags], capture_output=True, text=True, timeout=330)
    found = re.search(r"samples/s\s+│ ([\d,]+)", ended.stdout)
    if ended.returncode or not found:
        raise RuntimeError(f"expected a rate, received exit code {ended.returncode}:\n{ended.stderr}")
    return float(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="alternating runs of each (default: 3)")
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        for run in range(arguments.runs):
            for kind, options in KINDS.items():
                rates[kind].append(measure(options, scratch))
                print(f"run {run + 1}, {kind}: {rates[kind][-1]:,.0f} samples/s", flush=True)
    base = statistics.median(rates["one worker"])
    for kind, measured in rates.items():
        median = statistics.median(measured)
        print(f"{kind}: median {median:,.0f} samples/s, {median / base:.2f} of one worker")


if __name__ == "__main__":
    main()
