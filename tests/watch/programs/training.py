"""Trains with a StallWatch; one worker blocks, is slow, or traces for long, as asked."""

from __future__ import annotations

import argparse
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import create_strategy
from tfdist.watch import StallWatch
from tfdist.workers import worker_index

keras = tf.keras


class Slow(keras.layers.Layer):
    """A layer that takes long to trace, but not to run."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        # Only within fit: the model is also traced when it is built.
        self.is_armed = False

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if self.is_armed:
            time.sleep(self.seconds)
        return x


class Steps(keras.callbacks.Callback):
    """Says which step has ended, and sleeps after each step if asked."""

    def __init__(self, faults: set[str], at: int, seconds: float) -> None:
        super().__init__()
        self.faults, self.at, self.seconds = faults, at, seconds
        self.made = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.made += 1
        if self.made == self.at:
            print(f"MADE {self.made}", flush=True)
        if "slow_callback" in self.faults:
            time.sleep(self.seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="multi_worker_mirrored")
    parser.add_argument("--faults", nargs="*", default=[])
    parser.add_argument("--victim", type=int, default=1)
    parser.add_argument("--at", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--trace-seconds", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--floor", type=float, default=4.0)
    parser.add_argument("--deadline", type=float, default=4.0)
    given = parser.parse_args()
    strategy = create_strategy(given.strategy)
    worker = worker_index(strategy)
    print(f"PID {os.getpid()}", flush=True)
    faults = set(given.faults) if worker == given.victim else set()

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for i in range(given.steps):
            if "block_data" in faults and i == given.at:
                threading.Event().wait()
            if "hold_lock" in faults and i == given.at:
                # PyDLL, unlike CDLL, holds the global interpreter lock during the call.
                ctypes.PyDLL(None).sleep(int(given.seconds))
            time.sleep(given.seconds if "slow_data" in faults else given.step_seconds)
            yield np.ones([4], "float32"), np.ones([1], "float32")

    signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    slow = Slow(given.trace_seconds)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input([4]), slow, keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def dataset(_: Any = None) -> tf.data.Dataset:
        return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(1)

    several = strategy.num_replicas_in_sync > 1
    data = strategy.distribute_datasets_from_function(dataset) if several else dataset()
    slow.is_armed = "slow_trace" in faults
    watch = StallWatch(
        factor=5.0, floor_seconds=given.floor, deadline_seconds=given.deadline, data_seconds=max(given.floor, 20.0)
    )
    callbacks = [Steps(faults, given.at, given.seconds), watch]
    # Keras 2 refuses distributed data without the number of steps.
    steps = None if hasattr(keras, "ops") else given.steps
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
    print("ENDED", flush=True)


if __name__ == "__main__":
    main()
