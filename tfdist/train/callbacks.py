"""Callbacks of `tfdist train`."""

from __future__ import annotations

import time

from tfdist.keras_compat.version import keras
from tfdist.saving import save_model


class StepTimer(keras().callbacks.Callback):  # type: ignore[misc]
    """Measures the steps per second of training.

    The first step of an epoch is not counted, since it may trace the graph, nor is the time between epochs.

    Example:
        >>> from tfdist.train.callbacks import StepTimer
        >>> StepTimer().steps_per_second
        0.0
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._seconds = 0.0
        self._last: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Restarts the clock."""
        self._last = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts a step, measured from the end of the step before."""
        now = time.perf_counter()
        if self._last is not None:
            self._steps += 1
            self._seconds += now - self._last
        self._last = now

    @property
    def steps_per_second(self) -> float:
        """Steps per second, or 0 until an epoch has had two steps."""
        return self._steps / self._seconds if self._seconds else 0.0


class ChiefCheckpoint(keras().callbacks.Callback):  # type: ignore[misc]
    """Saves the model after every epoch to one file; the chief writes it, and every worker has to use the callback.

    Args:
        path: name of the file, ending in .keras.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Replaces the file by the model of this epoch."""
        save_model(self.model, self._path)
