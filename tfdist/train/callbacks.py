"""Callbacks of `tfdist train`."""

from __future__ import annotations

import time

from tfdist.keras_compat.version import keras
from tfdist.saving import save_model


class StepTimer(keras().callbacks.Callback):  # type: ignore[misc]
    """Measures the steps per second of training.

    The first step of each epoch is not counted, since it may trace the graph. The time between epochs is not counted
    either.

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
        """Leaves the time between epochs out of the measurement."""
        self._last = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts a step, whose time begins at the end of the previous step."""
        now = time.perf_counter()
        if self._last is not None:
            self._steps += 1
            self._seconds += now - self._last
        self._last = now

    @property
    def steps_per_second(self) -> float:
        """Steps per second; 0 if no epoch has had two steps yet."""
        return self._steps / self._seconds if self._seconds else 0.0


class ChiefCheckpoint(keras().callbacks.Callback):  # type: ignore[misc]
    """Saves the model to the same file after every epoch; every worker has to use the callback.

    Only the chief writes the file.

    Args:
        path: name of the file, ending in .keras.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Replaces the file with the model of this epoch."""
        save_model(self.model, self._path)
