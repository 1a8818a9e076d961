"""A fit that an error interrupts, and that is called again in the same process, ends with the same bits.

These tests are cheaper than killing a process, and show more states in which a fit can be interrupted.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.checkpoint import AutoResume

keras = tf.keras
ROWS, BATCH, EPOCHS = 100, 16, 4


class InterruptionError(Exception):
    """What interrupts a fit."""


class Interrupt(keras.callbacks.Callback):
    """Raises an error after so many train batches, test batches or epochs of one fit, or at its end."""

    def __init__(self, *, train: int = 0, test: int = 0, epoch: int = 0, end: int = 0) -> None:
        super().__init__()
        self.left = {"train": train, "test": test, "epoch": epoch, "end": end}

    def count(self, kind: str) -> None:
        left = dict(self.left)
        left[kind] -= 1
        self.left = left
        if left[kind] == 0:
            raise InterruptionError

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("train")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("test")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count("epoch")

    def on_train_end(self, logs: Any = None) -> None:
        self.count("end")


def data() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def fit(
    strategy: tf.distribute.Strategy,
    *callbacks: Any,
    dataset: Any = None,
    depends_on_replicas: bool = True,
    epochs: int = EPOCHS,
    compiled: dict[str, Any] | None = None,
    use_ema: bool = False,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Makes a model and trains it; returns it and everything that must be equal after an interruption."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, activation="tanh"),
            *([keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)] if depends_on_replicas else []),
            keras.layers.Dense(1),
        ]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.Adam(0.01, use_ema=use_ema)
        model.compile(optimizer, "mse", **{"metrics": ["mae"], **(compiled or {})})
    x, y = data()
    given = (x, y) if dataset is None else (dataset(x, y),)
    if dataset is None:
        options["batch_size"] = BATCH
    history = model.fit(*given, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)
    return model, results(model, history)


def results(model: Any, history: Any) -> dict[str, Any]:
    variables = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(v)) for v in model.optimizer.variables)]
    weights = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in variables)).hexdigest()
    return {"weights": weights, "history": history.history, "epochs": history.epoch}


def check(strategy, directory, *, at: list[dict[str, int]], extra=lambda: [], resume=None, **options) -> None:
    """Compares a fit that is interrupted several times with a fit without AutoResume."""
    _, expected = fit(strategy, *extra(), **options)
    resume = {"every_steps": 3, **(resume or {})}
    for interruption in at:
        with pytest.raises(InterruptionError):
            fit(strategy, Interrupt(**interruption), *extra(), AutoResume(str(directory), **resume), **options)
    _, found = fit(strategy, *extra(), AutoResume(str(directory), **resume), **options)
    assert found == expected


def shuffled(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).batch(BATCH)
