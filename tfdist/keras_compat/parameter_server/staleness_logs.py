"""Tells the staleness of the gradients of each epoch of fit, in the log and for TensorBoard.

`fit` gets one more callback, only under a strategy with the attribute `tfdist_updates`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.mend import patch_method
from tfdist.keras_compat.optimizers.hooked import optimizers_of
from tfdist.keras_compat.version import engine_module, keras, keras_in_use

_IS_OURS = "_tfdist_tells_staleness"


def staleness_callback(updates: Any, others: Sequence[Any]) -> Any:
    """Returns the callback of one fit.

    Args:
        updates: the `tfdist_updates` of the strategy.
        others: the other callbacks of fit; what they have for TensorBoard gets the staleness too.
    """

    class StalenessLogs(keras().callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            # Keras 2 would convert the logs of each step to NumPy for this callback.
            self._supports_tf_logs = True
            setattr(self, _IS_OURS, True)

        def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
            self._counts = updates.counts(optimizers_of(self.model))

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            counts = updates.counts(optimizers_of(self.model)).since(self._counts)
            get_logger().info("epoch %d: %s", epoch + 1, counts.line())
            for other in others:
                if isinstance(other, keras().callbacks.TensorBoard):
                    _write(other._train_writer, counts, step=epoch)

    return StalenessLogs()


def _write(writer: Any, counts: Any, *, step: int) -> None:
    with writer.as_default(step=step):
        tf.summary.scalar("staleness/mean", counts.mean)
        tf.summary.scalar("staleness/largest", counts.largest)
        tf.summary.scalar("staleness/updates", counts.updates)
        tf.summary.scalar("staleness/dropped", counts.dropped)
        values = np.repeat(np.arange(len(counts.histogram)), counts.histogram)
        tf.summary.histogram("staleness/gradients", values, buckets=counts.largest + 1)
    writer.flush()


def log_staleness() -> None:
    """Makes the fit of the Keras in use tell the staleness; to be called once in a process."""
    if keras_in_use().is_keras3:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as Model
    else:
        Model = engine_module("training").Model
    patch_method(Model, "fit", _with_callback)


def _with_callback(stock: Callable) -> Callable:
    signature = inspect.signature(stock)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        updates = getattr(self.distribute_strategy, "tfdist_updates", None)
        if updates is None:
            return stock(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        given: Any = bound.arguments.get("callbacks")
        if isinstance(getattr(given, "callbacks", None), list):
            # A CallbackList of the caller's own, which fit uses as it is. It may have that of an earlier fit.
            given.callbacks[:] = [one for one in given.callbacks if not hasattr(one, _IS_OURS)]
            own = staleness_callback(updates, given.callbacks)
            own.set_model(self)
            given.callbacks.append(own)
        else:
            others = [given] if isinstance(given, keras().callbacks.Callback) else list(given or ())
            bound.arguments["callbacks"] = [staleness_callback(updates, others), *others]
        return stock(*bound.args, **bound.kwargs)

    return fit
