"""Compares the samples per second of two workers on this machine with those of one worker that has all CPUs.

Runs alternate between the cases. The launcher divides the CPU threads among the workers. In the third case,
`--threads-per-rank 0`, it does not, and every worker starts as many threads as there are CPUs. The default model has
few parameters, so that the CPUs limit the rate and not the network; `--model cnn` has a million parameters, whose
gradients the two workers exchange in every step.

    python benchmarks/two_workers.py
"""

from __future__ import annotations

import argparse
import os
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
FLAGS = ("--data=synthetic", "--image_shape=48,48,3", "--num_classes=4", "--global_batch_size=256", "--epochs=6")


def convolutions(*, image_shape: tuple[int, int, int], num_classes: int):
    """Returns a model that needs much computation and has only 20,000 parameters."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input(image_shape),
            layers.Rescaling(1 / 255),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes, dtype="float32"),
        ]
    )


def measure(options: tuple[str, ...], model: str, scratch: str) -> float:
    """Runs `tfdist train` in the workers and returns their samples per second."""
    command = [sys.executable, "-m", "tfdist", "launch", *options, "--timeout-seconds", "300", "--log-dir", scratch]
    flags = (*FLAGS, f"--model={model}", f"--model_dir={scratch}/model")
    path = os.pathsep.join(filter(None, (os.path.dirname(os.path.abspath(__file__)), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [*command, "-m", "tfdist.train", *flags],
        capture_output=True,
        text=True,
        timeout=330,
        env={**os.environ, "PYTHONPATH": path},
    )
    found = re.search(r"samples/s\s+│ ([\d,]+)", ended.stdout)
    if ended.returncode or not found:
        raise RuntimeError(f"expected samples/s in the output, received exit code {ended.returncode}:\n{ended.stderr}")
    return float(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="number of runs of each case (default: 3)")
    parser.add_argument(
        "--model", default="two_workers:convolutions", help="model of tfdist train (default: %(default)s)"
    )
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as scratch:
        for run in range(arguments.runs):
            for kind, options in KINDS.items():
                rates[kind].append(measure(options, arguments.model, scratch))
                print(f"run {run + 1}, {kind}: {rates[kind][-1]:,.0f} samples/s", flush=True)
    base = statistics.median(rates["one worker"])
    for kind, measured in rates.items():
        median = statistics.median(measured)
        print(f"{kind}: median {median:,.0f} samples/s, {median / base:.2f} of one worker")


if __name__ == "__main__":
    main()
