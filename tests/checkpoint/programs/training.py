"""Trains a model with AutoResume, kills itself after some steps if asked to, and prints what the training has given.

The model has everything whose state must survive: batch statistics, dropout, an optimizer with slots, a learning rate
that changes, metrics, callbacks that remember, and perhaps compressed gradients or a loss scale.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.averaging import DPSGD, ChocoSGD, ElasticAverage, LocalSGD
from tfdist.checkpoint.auto_resume import AutoResume
from tfdist.input import distribute_files, write_tfrecords
from tfdist.keras_compat import keras_in_use

keras = tf.keras
BATCH = 16
ROWS = 100


def data_of(kind: str, strategy: tf.distribute.Strategy, directory: str) -> tuple[tuple, dict[str, Any]]:
    """Returns the arguments of fit for a kind of data, each of which is in another order in each epoch."""
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    if kind == "arrays":
        return (x, y), {"batch_size": BATCH}
    if kind == "dataset":
        return (rows.shuffle(64, seed=3).batch(BATCH),), {}
    if kind == "repeated":
        return (rows.shuffle(64, seed=3).repeat().batch(BATCH),), {"steps_per_epoch": 7}
    if kind == "augmented":
        return (rows.shuffle(64).batch(BATCH).map(lambda x, y: (x + 0.1 * tf.random.normal(tf.shape(x)), y)),), {}
    if not os.path.isdir(directory):
        os.makedirs(directory)
        records = [tf.io.serialize_tensor(tf.concat(row, 0)).numpy() for row in zip(x, y, strict=True)]
        write_tfrecords(records, os.path.join(directory, "rows"), num_shards=4)
    files = os.path.join(directory, "*.tfrecord")

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [9])
        return row[:8], row[8:]

    return (distribute_files(strategy, files, parse_fn=parse, global_batch_size=BATCH, seed=4),), {}


class Signalled(keras.callbacks.Callback):
    """Sends a signal to this process, on one worker, after so many train steps or test steps of this process."""

    # AutoResume restores attributes of a callback, but not those of its class.
    steps_made = 0
    fit_has_ended = False

    def __init__(self, steps: int, worker: int, *, during: str, number: int) -> None:
        super().__init__()
        self.steps, self.during, self.number = steps, during, number
        self.losses: list[float] = []
        task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
        self.is_victim = task.get("index", 0) == worker

    def count(self, during: str) -> None:
        Signalled.steps_made += during == self.during
        if Signalled.steps_made == self.steps and self.is_victim and during == self.during:
            os.kill(os.getpid(), self.number)
            # Another thread handles the signal.
            time.sleep(1.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.count("train begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses = [*self.losses, float(logs["loss"])]
        self.count("train")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("evaluate" if Signalled.fit_has_ended else "test")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count("epoch end")

    def loss(self, y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
        self.count("trace")
        if self.during == "trace" and self.steps:
            time.sleep(2.0)
        return tf.square(y - p)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory")
    parser.add_argument("--strategy")
    parser.add_argument("--data", default="dataset")
    parser.add_argument("--data-directory", default="")
    parser.add_argument("--compression")
    parser.add_argument("--policy", default="float32")
    parser.add_argument("--local-steps", type=int, default=0)
    parser.add_argument("--outer", default="average")
    parser.add_argument("--overlap", action="store_true")
    parser.add_argument("--kill-after", type=int, default=0)
    parser.add_argument("--terminate-after", type=int, default=0)
    parser.add_argument("--during", default="train")
    parser.add_argument("--victim", type=int, default=0)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--without-noise", action="store_true", help="leave out what depends on the replicas")
    given = parser.parse_args()
    options: dict[str, Any] = {"devices": 2} if given.strategy == "mirrored" else {}
    if given.compression:
        options["all_reduce"] = tfdist.AllReduceOptions(compression=given.compression)
    strategy = tfdist.create_strategy(given.strategy, **options)
    keras.mixed_precision.set_global_policy(given.policy)
    if not keras_in_use().is_keras3:
        # The states of the random operations that Keras 2 uses otherwise cannot be read.
        keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(5)
    with strategy.scope():
        noise = [] if given.without_noise else [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
        hidden = keras.layers.Dense(256, activation="tanh")
        model = keras.Sequential([keras.layers.Input((8,)), hidden, *noise, keras.layers.Dense(1, dtype="float32")])
        rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
        optimizer = keras.optimizers.Adam(rate)
        if given.policy == "mixed_float16":
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic_growth_steps=5)
        if given.outer == "DPSGD":
            optimizer = DPSGD(optimizer)
        elif given.outer == "ChocoSGD":
            optimizer = ChocoSGD(optimizer, compression="topk:0.1", consensus_rate=0.3)
        elif given.local_steps:
            average = ["weights", "statistics"] if given.overlap else ["weights", "slots", "statistics"]
            outer = ElasticAverage(rate=0.3) if given.outer == "elastic" else given.outer
            optimizer = LocalSGD(
                optimizer, every=given.local_steps, outer=outer, average=average, overlap=given.overlap
            )
        number = signal.SIGKILL if given.kill_after else signal.SIGTERM
        steps = given.kill_after or given.terminate_after
        signalled = Signalled(steps, given.victim, during=given.during, number=number)
        model.compile(optimizer, signalled.loss, metrics=["mae"])
    data, arguments = data_of(given.data, strategy, given.data_directory)
    if given.epochs == 0:
        return
    callbacks = [
        signalled,
        keras.callbacks.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True),
    ]
    if given.directory:
        callbacks.append(AutoResume(given.directory, every_steps=3, memory=not given.no_memory))
    rows = np.random.default_rng(1).normal(size=(2 * BATCH, 9)).astype("float32")
    validation = {"validation_data": (rows[:, :8], rows[:, 8:]), "validation_batch_size": BATCH}
    history = model.fit(*data, epochs=given.epochs, verbose=0, callbacks=callbacks, **arguments, **validation)
    if given.during == "evaluate":
        Signalled.fit_has_ended = True
        model.evaluate(*validation["validation_data"], batch_size=BATCH, verbose=0, callbacks=[signalled])
    # The slots of DPSGD and ChocoSGD are those of each replica; the weights of the later steps depend on them.
    others = () if given.outer in ("DPSGD", "ChocoSGD") else model.optimizer.variables
    variables = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(v)) for v in others)]
    weights = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in variables)).hexdigest()
    result = {
        "weights": weights,
        "norms": [float(np.linalg.norm(value)) for value in model.get_weights()],
        "history": history.history,
        "epochs": history.epoch,
        # With local steps, the loss that a worker sees after a batch is its own.
        "losses": [] if given.local_steps else signalled.losses,
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
