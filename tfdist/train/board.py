"""TrainingBoard: what TensorBoard shows beside Keras's own scalars: step times by worker, and bytes of gradients."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.optimizers import gradient_traffic
from tfdist.watch import StallWatch
from tfdist.workers import exchange, is_chief

RUN = "workers"
"""The run of TensorBoard that holds these numbers, beside Keras's `train` and `validation`."""

_QUANTILES = 64


def sketch(seconds: Sequence[float]) -> list[float]:
    """Returns a fixed number of quantiles, which have about the histogram of all values; nan if there are no values.

    Args:
        seconds: the values.

    Example:
        >>> len(sketch([0.1, 0.2])), min(sketch([0.1, 0.2])), max(sketch([0.1, 0.2]))
        (64, 0.1, 0.2)
    """
    if not len(seconds):
        return [float("nan")] * _QUANTILES
    return np.quantile(np.asarray(seconds), np.linspace(0, 1, _QUANTILES)).tolist()


class _Times:
    """Times of the steps of an epoch. AutoResume keeps plain attributes of a callback only, and not such an object."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last: float | None = None
        # The bytes and steps until the epoch before.
        self.sent, self.steps = 0.0, 0


class TrainingBoard(keras().callbacks.Callback):  # type: ignore[misc]
    """Writes for TensorBoard, after each epoch, how long the steps took on each worker, and what gradients cost.

    Every worker uses the callback. The workers exchange their times once an epoch, and the chief writes them:

    - `step_seconds/worker_N`, a histogram of the time from the end of a step to the end of the next one;
    - `waiting_share/worker_N`, the share of the time in which the worker waited for others, from the samples of
      StallWatch: a straggler is the worker that does not wait. It is known after some seconds of training;
    - `gradients/bytes_per_step` and `gradients/ratio`, with compression: bytes that a replica sent in a step of this
      epoch, and how many times more they would be without compression.

    Args:
        directory: directory of TensorBoard's logs.
        watch: the StallWatch of the training, or None.
        is_compressed: whether gradients are compressed.
    """

    def __init__(self, directory: str, *, watch: StallWatch | None, is_compressed: bool) -> None:
        super().__init__()
        self._directory, self._is_compressed = directory, is_compressed
        self._waiting: Callable[[], float | None] = watch.waiting_share if watch is not None else lambda: None
        self._times = _Times()
        self._writer: tf.summary.SummaryWriter | None = None
        # Keras 2 would convert the logs of each step to NumPy for this callback.
        self._supports_tf_logs = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Leaves the time between epochs out of the measurement."""
        self._times.seconds, self._times.last = [], None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the time of a step. The first step of an epoch is left out, since it may trace the graph."""
        now = time.perf_counter()
        if self._times.last is not None:
            self._times.seconds.append(now - self._times.last)
        self._times.last = now

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes what happened in the epoch."""
        waiting = self._waiting()
        own = [*sketch(self._times.seconds), float("nan") if waiting is None else waiting]
        strategy = self.model.distribute_strategy
        rows = exchange(strategy, own, dtype="float64", to="compare the times of their steps")
        if not is_chief(strategy):
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(os.path.join(self._directory, RUN))
        with self._writer.as_default(step=epoch):
            for worker, (*seconds, share) in enumerate(rows):
                if np.isfinite(seconds).all():
                    tf.summary.histogram(f"step_seconds/worker_{worker}", seconds)
                if np.isfinite(share):
                    tf.summary.scalar(f"waiting_share/worker_{worker}", share)
            if self._is_compressed:
                self._write_traffic()
        self._writer.flush()

    def _write_traffic(self) -> None:
        found = gradient_traffic(self.model.optimizer)
        steps = found.steps - self._times.steps
        if steps > 0:
            tf.summary.scalar("gradients/bytes_per_step", (found.sent - self._times.sent) / steps)
            tf.summary.scalar("gradients/ratio", found.ratio)
        self._times.sent, self._times.steps = found.sent, found.steps
