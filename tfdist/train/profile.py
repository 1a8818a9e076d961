"""ProfileSteps: profiles some steps of a training for TensorBoard."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.version import keras


class _Running:
    """Says whether the profiler runs. AutoResume keeps plain attributes of a callback only, and not such an object."""

    def __init__(self) -> None:
        self.is_on = False
        self.step: Any = None


class ProfileSteps(keras().callbacks.Callback):  # type: ignore[misc]
    """Profiles some steps, which TensorBoard shows under Profile.

    The steps are counted over all epochs and interruptions. Keras's TensorBoard callback counts them anew after an
    interruption within the profile.

    Args:
        first: the first step, counted from 1.
        last: the last step.
        steps_per_epoch: number of steps of an epoch.
        directory: directory of TensorBoard's logs.
    """

    def __init__(self, first: int, last: int, *, steps_per_epoch: int, directory: str) -> None:
        super().__init__()
        self._first, self._last, self._steps_per_epoch, self._directory = first, last, steps_per_epoch, directory
        self._epoch = 0
        self._running = _Running()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Counts the steps of earlier epochs."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Starts the profiler before the first step."""
        step = self._epoch * self._steps_per_epoch + batch + 1
        if not self._running.is_on and self._first <= step <= self._last:
            tf.profiler.experimental.start(self._directory)
            self._running.is_on = True
        if self._running.is_on:
            self._running.step = tf.profiler.experimental.Trace("train", step_num=step, _r=1)
            self._running.step.__enter__()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops the profiler after the last step."""
        if not self._running.is_on:
            return
        self._running.step.__exit__(None, None, None)
        if self._epoch * self._steps_per_epoch + batch + 1 >= self._last:
            self._stop()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Stops the profiler if the training ends before the last step."""
        if self._running.is_on:
            self._stop()

    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        self._running.is_on = False
        get_logger().info("the profile of steps %d to %d is in %s", self._first, self._last, self._directory)
