"""KeepLearningRate: a training that goes on has the learning rate of its flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras


class KeepLearningRate(keras().callbacks.Callback):  # type: ignore[misc]
    """Sets a constant learning rate anew when a training goes on.

    Keras keeps a constant learning rate in a variable, which AutoResume restores. `--learning_rate` would otherwise be
    ignored if it has changed since.

    Args:
        rate: the learning rate.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._rate = float(rate)
        self._pending = _Pending()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Sets the learning rate before the first step of this process."""
        if self._pending.is_pending:
            self._pending.is_pending = False
            optimizer = self.model.optimizer
            if np.float32(learning_rate_of(optimizer)) != np.float32(self._rate):
                optimizer.learning_rate = self._rate


def learning_rate_of(optimizer: Any) -> float:
    """Returns the current learning rate.

    Args:
        optimizer: optimizer of the Keras in use.
    """
    return float(tf.convert_to_tensor(optimizer.learning_rate))


class _Pending:
    """Whether the rate is still to be set. AutoResume keeps plain attributes only, and not such an object."""

    is_pending = True
