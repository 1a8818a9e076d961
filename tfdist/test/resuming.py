"""The training of `tfdist test` that is interrupted by SIGKILL, and goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import AutoResume
from tfdist.test.programs import SEED, data, loss_of, model_of
from tfdist.workers import count_workers, worker_index

UNINTERRUPTED = "uninterrupted.npz"
EVERY_STEPS = 2
KILLED_AFTER = 5
_BATCHES, _EPOCHS = 3, 3


class _Kill(tf.keras.callbacks.Callback):
    """Kills the process of the last worker after a step, as the system does if memory is short."""

    def __init__(self, is_last: bool) -> None:
        super().__init__()
        self._is_last = is_last
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts steps."""
        self._steps += 1
        if self._is_last and self._steps == KILLED_AFTER:
            os.kill(os.getpid(), signal.SIGKILL)


class _FirstStep(tf.keras.callbacks.Callback):
    """Remembers with which step the training goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reads the optimizer, which counts the steps of all processes."""
        self.step = self.step or int(self.model.optimizer.iterations.numpy())


def _train(strategy: tf.distribute.Strategy, callbacks: list[Any]) -> list[np.ndarray]:
    tf.keras.utils.set_random_seed(SEED)
    workers = count_workers(strategy)
    x, y, size = data(workers, batches=_BATCHES)
    with strategy.scope():
        model = model_of()
        model.compile(tf.keras.optimizers.Adam(0.01), loss_of())
    model.fit(x, y, batch_size=size, epochs=_EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    return [*model.get_weights(), *(np.asarray(variable) for variable in _state(model.optimizer))]


def _state(optimizer: Any) -> list[Any]:
    # A property in Keras 3, and a method in Keras 2.
    found = optimizer.variables
    return list(found() if callable(found) else found)


def train_until_killed(strategy: tf.distribute.Strategy, folder: Path) -> None:
    """Trains without an interruption, keeps the result in a file, and trains again until the last worker is killed.

    Args:
        strategy: the strategy of the workers.
        folder: folder of this task.
    """
    np.savez(folder / UNINTERRUPTED, *_train(strategy, []))
    resume = AutoResume(str(folder / "snapshots"), every_steps=EVERY_STEPS)
    _train(strategy, [resume, _Kill(worker_index(strategy) == count_workers(strategy) - 1)])


def train_on(strategy: tf.distribute.Strategy, folder: Path) -> tuple[int, bool]:
    """Goes on with the training that was killed.

    Args:
        strategy: the strategy of the workers.
        folder: folder of this task.

    Returns:
        The first step after the snapshot, and whether the training ended with the bits of the one without interruption.
    """
    first = _FirstStep()
    own = _train(strategy, [AutoResume(str(folder / "snapshots"), every_steps=EVERY_STEPS), first])
    with np.load(folder / UNINTERRUPTED) as kept:
        expected = list(kept.values())
    is_same = len(own) == len(expected) and all(
        one.tobytes() == other.tobytes() for one, other in zip(own, expected, strict=True)
    )
    return first.step, is_same
