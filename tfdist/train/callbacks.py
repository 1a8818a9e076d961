"""Callbacks of `tfdist train`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.saving import save_model

_ACTIONS = (
    "lower --learning_rate, check the training data for values that are not finite, or train on with "
    "--nostop_on_nonfinite_loss."
)


class _Moment:
    """A time of this process. AutoResume keeps plain attributes of a callback only, and not such an object."""

    def __init__(self) -> None:
        self.seconds: float | None = None


class StepTimer(keras().callbacks.Callback):  # type: ignore[misc]
    """Measures the steps per second of training.

    The first step of each epoch is not counted, since it may trace the graph. The time between epochs is not counted
    either. With AutoResume, the steps before an interruption are part of the measurement; the time until the training
    goes on is not.

    Example:
        >>> from tfdist.train.callbacks import StepTimer
        >>> StepTimer().steps_per_second
        0.0
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._seconds = 0.0
        self._last = _Moment()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Leaves the time between epochs out of the measurement."""
        self._last.seconds = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts a step, whose time begins at the end of the previous step."""
        now = time.perf_counter()
        if self._last.seconds is not None:
            self._steps += 1
            self._seconds += now - self._last.seconds
        self._last.seconds = now

    @property
    def steps_per_second(self) -> float:
        """Steps per second; 0 if no epoch has had two steps yet."""
        return self._steps / self._seconds if self._seconds else 0.0


class TrainingNotFiniteError(ArithmeticError):
    """The loss or the weights of a training are not finite.

    Example:
        >>> from tfdist.train.callbacks import TrainingNotFiniteError
        >>> issubclass(TrainingNotFiniteError, ArithmeticError)
        True
    """


class StopIfNotFinite(keras().callbacks.Callback):  # type: ignore[misc]
    """Ends the training with an error if its loss or its weights are not finite.

    Looks at every log whose name contains "loss" after every 50 steps and at the end of each epoch. The logs are means
    over the epoch so far, so that no step is missed, and they are equal on all workers, so that all workers end at the
    same step. Looking after every step would make the host wait for every step of an accelerator. At the end of an
    epoch, the callback also looks at the trainable weights, which the last step of the epoch may have broken. List the
    callback before callbacks that save the model, so that broken weights do not replace a checkpoint.

    Args:
        every: number of steps after which the loss is looked at.

    Raises:
        TrainingNotFiniteError: from `fit`, with the steps in question.

    Example:
        >>> from tfdist.train.callbacks import StopIfNotFinite
        >>> StopIfNotFinite().on_epoch_end(2, {"loss": float("nan")})
        Traceback (most recent call last):
        ...
        tfdist.train.callbacks.TrainingNotFiniteError: expected a finite loss, received nan in epoch 3; ...
    """

    def __init__(self, every: int = 50) -> None:
        super().__init__()
        self._every = every
        self._epoch = self._step = self._looked_at = 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Counts the steps of the epoch from 1."""
        self._epoch, self._step, self._looked_at = epoch, 0, 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Looks at the loss after every so many steps."""
        self._step += 1
        if self._step % self._every == 0:
            self._look(logs or {})
            self._looked_at = self._step

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Looks at the loss of the epoch and at the weights."""
        self._epoch = epoch
        self._look({name: value for name, value in (logs or {}).items() if not name.startswith("val_")})
        self._look_at_weights(f"at the end of epoch {epoch + 1}")

    def look(self, logs: Mapping[str, Any]) -> None:
        """Looks at the loss and at the weights, before a snapshot is taken.

        Args:
            logs: the logs of the newest step.

        Raises:
            TrainingNotFiniteError: if one of them is not finite.
        """
        self._look(logs)
        self._look_at_weights(f"after step {self._step} of epoch {self._epoch + 1}")

    def _look_at_weights(self, when: str) -> None:
        for variable in self.model.trainable_variables if self.model is not None else ():
            value = tf.convert_to_tensor(variable)
            if value.dtype.is_floating and not bool(tf.reduce_all(tf.math.is_finite(value))):
                raise TrainingNotFiniteError(
                    f"expected finite weights, received nan or inf in {getattr(variable, 'path', variable.name)} "
                    f"{when}; {_ACTIONS}"
                )

    def _look(self, logs: Mapping[str, Any]) -> None:
        for name, value in logs.items():
            if "loss" in name and not np.all(np.isfinite(np.asarray(value))):
                raise TrainingNotFiniteError(
                    f"expected a finite {name}, received {np.asarray(value)} {self._steps()}; {_ACTIONS}"
                )

    def _steps(self) -> str:
        epoch = f"epoch {self._epoch + 1}"
        first, last = self._looked_at + 1, self._step
        if first >= last:
            return f"in step {last} of {epoch}" if first == last else f"in {epoch}"
        return f"in a step from {first} to {last} of {epoch}"


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
