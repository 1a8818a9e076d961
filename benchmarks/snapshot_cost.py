"""Measures what the snapshots of AutoResume cost.

    python benchmarks/snapshot_cost.py copy
    python benchmarks/snapshot_cost.py steps --runs 7

`copy` compares how long a snapshot of 500 MB in shared memory holds up a step with a plain copy of the same arrays.
`steps` compares the time of a step with AutoResume and without it, in alternating runs of `fit`: a model of 5 million
parameters with Adam, 60 MB of state, on one device. It prints the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import numpy as np


def copy(*, runs: int, megabytes: int) -> None:
    """Prints the times of a copy and of a snapshot of the same arrays.

    Args:
        runs: how often to measure each.
        megabytes: size of the arrays.
    """
    from tfdist.checkpoint.memory import MemoryTier
    from tfdist.checkpoint.part import Part

    generator = np.random.default_rng(0)
    values = {f"weights {i}": generator.normal(size=(megabytes * 12_500)).astype("float32") for i in range(20)}
    targets = {name: np.zeros_like(value) for name, value in values.items()}
    part, times = Part(step=1, values=values, notes={}), {"copy": [], "snapshot": []}
    with tempfile.TemporaryDirectory() as folder:
        tier = MemoryTier(folder, worker=0)
        # Each of the three slots is allocated when it is first used.
        for _ in range(3):
            tier.write(part)
        for _ in range(runs):
            begun = time.perf_counter()
            for name, value in values.items():
                np.copyto(targets[name], value)
            copied = time.perf_counter()
            tier.write(part)
            times["copy"].append(copied - begun)
            times["snapshot"].append(time.perf_counter() - copied)
        tier.clear()
    medians = {name: statistics.median(found) for name, found in times.items()}
    print(f"copy {medians['copy'] * 1e3:.1f} ms, snapshot {medians['snapshot'] * 1e3:.1f} ms")
    print(f"ratio of medians {medians['snapshot'] / medians['copy']:.3f}")


def steps(*, runs: int, steps_a_run: int) -> None:
    """Prints the time of a step with AutoResume and without it.

    Args:
        runs: number of runs of each.
        steps_a_run: number of steps of a run.
    """
    import tensorflow as tf

    import tfdist
    from tfdist.checkpoint import AutoResume

    keras = tf.keras
    keras.utils.set_random_seed(1)
    with tfdist.create_strategy("one_device").scope():
        layers = [keras.layers.Input((1000,)), *[keras.layers.Dense(1000, activation="relu") for _ in range(5)]]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(1e-4), "mse")
    rows = np.random.default_rng(0).normal(size=(128, 1000)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows[:, :1])).repeat().batch(128)

    class Ends(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())

    def seconds_a_step(*, resumes: bool) -> float:
        ends = Ends()
        with tempfile.TemporaryDirectory() as folder:
            callbacks = [ends, *([AutoResume(folder)] if resumes else [])]
            model.fit(dataset, steps_per_epoch=steps_a_run, verbose=0, callbacks=callbacks)
        return (ends.times[-1] - ends.times[0]) / (len(ends.times) - 1)

    print(f"{model.count_params():,} parameters, {steps_a_run} steps a run")
    times: dict[bool, list[float]] = {False: [], True: []}
    for resumes in (False, True):
        seconds_a_step(resumes=resumes)
    for number in range(runs):
        for resumes in ((False, True), (True, False))[number % 2]:
            times[resumes].append(seconds_a_step(resumes=resumes))
        print(f"{times[False][-1] * 1e3:.2f} ms without, {times[True][-1] * 1e3:.2f} ms with AutoResume", flush=True)
    print(f"ratio of medians {statistics.median(times[True]) / statistics.median(times[False]):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("copy", "steps"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    if given.what == "copy":
        copy(runs=given.runs, megabytes=given.megabytes)
    else:
        steps(runs=given.runs, steps_a_run=given.steps)


if __name__ == "__main__":
    main()
