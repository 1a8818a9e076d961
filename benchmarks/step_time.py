"""Compares the step time of `fit` under a strategy of tfdist and under a bare tf.distribute strategy.

Runs alternate between the two strategies. The program prints the median step time of each run and the ratio of the
medians. MirroredStrategy has two logical CPUs in one process, MultiWorkerMirroredStrategy has two processes. The
comparison with the bare MultiWorkerMirroredStrategy needs Keras 2, because Keras 3 cannot train under that strategy.

    python benchmarks/step_time.py
    TF_USE_LEGACY_KERAS=1 python benchmarks/step_time.py
    TF_USE_LEGACY_KERAS=1 python benchmarks/step_time.py --strategy multi_worker_mirrored
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from typing import Any

STEPS = 300
WARM_UP = 50


def strategy_of(kind: str, name: str) -> Any:
    """Returns the strategy, made by tfdist or directly by TensorFlow."""
    import tensorflow as tf

    devices = 2 if name == "mirrored" else None
    if kind == "tfdist":
        import tfdist

        return tfdist.create_strategy(name, devices=devices)
    if devices is None:
        return tf.distribute.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])


def program(kind: str, name: str) -> None:
    """Trains in one worker and prints the median step time in milliseconds."""
    strategy = strategy_of(kind, name)
    import tensorflow as tf

    keras = tf.keras
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((28, 28, 1)),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Flatten(),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    ends: list[float] = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(time.perf_counter())

    def dataset_fn(context):
        batch = context.get_per_replica_batch_size(64)
        return tf.data.Dataset.from_tensors((tf.ones([batch, 28, 28, 1]), tf.zeros([batch], tf.int64))).repeat()

    data = strategy.distribute_datasets_from_function(dataset_fn)
    model.fit(data, steps_per_epoch=STEPS, epochs=1, verbose=0, callbacks=[Clock()])
    times = [b - a for a, b in zip(ends[WARM_UP:], ends[WARM_UP + 1 :], strict=False)]
    print(f"MEDIAN {1e3 * statistics.median(times):.4f}", flush=True)


def measure(kind: str, name: str) -> float:
    """Starts the workers and returns the chief's median step time in milliseconds."""
    workers = "1" if name == "mirrored" else "2"
    command = [sys.executable, "-m", "tfdist", "launch", "--workers", workers, "--timeout-seconds", "300", "--"]
    command += [__file__, "--program", kind, "--strategy", name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=330)
    found = re.search(r"MEDIAN ([\d.]+)", ended.stdout)
    if ended.returncode or not found:
        raise RuntimeError(
            f"expected a median from the {kind} run, received exit code {ended.returncode}:\n{ended.stderr}"
        )
    return float(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each strategy (default: 5)")
    parser.add_argument("--strategy", choices=("mirrored", "multi_worker_mirrored"), default="mirrored")
    parser.add_argument("--program", choices=("tfdist", "bare"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.program:
        program(arguments.program, arguments.strategy)
        return
    times: dict[str, list[float]] = {"tfdist": [], "bare": []}
    for run in range(arguments.runs):
        for kind, measured in times.items():
            measured.append(measure(kind, arguments.strategy))
            print(f"run {run + 1}, {kind}: {measured[-1]:.3f} ms per step", flush=True)
    medians = {kind: statistics.median(measured) for kind, measured in times.items()}
    print(f"medians: tfdist {medians['tfdist']:.3f} ms, bare {medians['bare']:.3f} ms")
    print(f"ratio of medians: {medians['tfdist'] / medians['bare']:.3f}")


if __name__ == "__main__":
    main()
