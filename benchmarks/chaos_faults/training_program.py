"""Trains a small model with AutoResume and StallWatch, says in which phase it is, and writes what the training gave.

The model has batch statistics, dropout, an optimizer with slots, a learning rate that changes, and metrics, whose
states must all survive.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Named before the imports, which take some seconds.
_TASK = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"type": "worker", "index": 0})
BATCH, ROWS, EPOCHS = 16, 96, 5
STEPS = EPOCHS * ROWS // BATCH


def say(folder: Path, phase: str) -> None:
    """Adds a phase to the file of phases of this worker."""
    with (folder / f"phases-{_TASK['index']}").open("a") as file:
        file.write(f"{phase}\n")


def die_on_disk(save: int, call: int) -> None:
    """Kills this process at a system call of the thread that writes a snapshot to the disk.

    Args:
        save: number of the snapshot, counted from 0.
        call: number of the system call on files.
    """
    from tests.checkpoint import killing

    saves, calls, last = -1, 0, None

    def patched(stock: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal saves, calls, last
            thread = threading.current_thread()
            if thread.name == "tfdist-snapshot":
                if thread is not last:
                    saves, calls, last = saves + 1, 0, thread
                if saves == save and calls >= call:
                    killing.killed()
                calls += 1
            return stock(*args, **kwargs)

        return run

    for name in killing.CALLS:
        setattr(os, name, patched(getattr(os, name)))


def die_in_memory(save: int) -> None:
    """Kills this process in the middle of the copy of a snapshot to shared memory.

    Args:
        save: number of the snapshot, counted from 0.
    """
    from tests.checkpoint import killing
    from tfdist.checkpoint import memory

    stock, saves = memory.write_part, 0

    def write_part(part: Any, buffer: memoryview, *args: Any, **options: Any) -> int:
        nonlocal saves
        saves += 1
        if saves > save:
            # The head is gone, and some of the arrays are new.
            buffer[: len(buffer) // 2] = bytes(len(buffer) // 2)
            killing.killed()
        return stock(part, buffer, *args, **options)

    memory.write_part = write_part


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--without-resume", action="store_true")
    parser.add_argument("--pace-seconds", type=float, default=0.1)
    parser.add_argument("--die", choices=("on disk", "in memory"))
    parser.add_argument("--victim", type=int, default=0)
    parser.add_argument("--save", type=int, default=0)
    parser.add_argument("--call", type=int, default=0)
    given = parser.parse_args()
    say(given.folder, "starting")

    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.checkpoint import AutoResume
    from tfdist.watch import StallWatch

    is_first = os.environ.get("TFDIST_ATTEMPT", "0") == "0"
    if given.die and is_first and _TASK["index"] == given.victim:
        die_on_disk(given.save, given.call) if given.die == "on disk" else die_in_memory(given.save)
    keras = tf.keras
    strategy = tfdist.create_strategy(given.strategy)
    if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
        # The states of the random operations that Keras 2 uses otherwise cannot be read.
        keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(5)

    class Phases(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            say(given.folder, "tracing")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                say(given.folder, "training")
            time.sleep(given.pace_seconds)

        def on_test_begin(self, logs: Any = None) -> None:
            say(given.folder, "evaluating")

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(given.pace_seconds)

    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((8,)),
                keras.layers.Dense(256, activation="tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
        model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"])
    numbers = np.random.default_rng(0)
    x, rows = (numbers.normal(size=(count, 8)).astype("float32") for count in (ROWS, 2 * BATCH))
    data = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(64, seed=3).batch(BATCH)
    watch = StallWatch(
        floor_seconds=15.0, deadline_seconds=5.0, tracing_seconds=120.0, data_seconds=60.0, saving_seconds=60.0
    )
    callbacks = [Phases(), watch]
    if not given.without_resume:
        callbacks.append(AutoResume(str(given.folder / "run"), every_steps=2))
    validation = {"validation_data": (rows, rows.sum(axis=1, keepdims=True)), "validation_batch_size": BATCH}
    history = model.fit(data, epochs=EPOCHS, verbose=0, callbacks=callbacks, **validation)
    variables = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(v)) for v in model.optimizer.variables)]
    weights = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in variables)).hexdigest()
    result = given.folder / f"result-{_TASK['index']}"
    result.write_text(json.dumps({"weights": weights, "history": history.history, "epochs": history.epoch}))
    say(given.folder, "finished")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
