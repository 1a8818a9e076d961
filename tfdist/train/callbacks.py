"""Callbacks of `tfdist train`."""

from __future__ import annotations

import time

from tfdist.keras_compat.version import keras
from tfdist.saving import save_model


class StepTimer(keras().callbacks.Callback):  # type: ignore[misc]
    """Measures the rate of steps, without the first, which traces the graph, and without what lies between epochs."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._seconds = 0.0
        self._last: float | None = None

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Starts the clock anew."""
        self._last = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts a step, from the end of the one before."""
        now = time.perf_counter()
        if self._last is not None:
            self._steps += 1
            self._seconds += now - self._last
        self._last = now

    @property
    def steps_per_second(self) -> float:
        """Steps a second, or 0 before two steps of one epoch have been made."""
        return self._steps / self._seconds if self._seconds else 0.0


class ChiefCheckpoint(keras().callbacks.Callback):  # type: ignore[misc]
    """Saves the model after every epoch to one file, which the chief writes and every worker takes part in."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Replaces the checkpoint."""
        save_model(self.model, self._path)
