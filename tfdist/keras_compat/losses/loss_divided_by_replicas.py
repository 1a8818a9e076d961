"""Mends Keras 3's losses, which give every replica the same weight, whatever its number of rows.

Stock Keras multiplies the mean over a replica's rows by 1 / number of replicas. The sum over replicas is the mean over
the global batch only if all replicas have equally many rows, equally many unmasked steps, and weights of the same sum.
The mend multiplies the mean by the replica's share of the divisor that a single device would use.

Source: `scale_loss_for_distribution` in Keras 3's losses/loss.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch, global_batch, sum_over_replicas, temporarily
from tfdist.keras_compat.mend import Mend

_local = threading.local()


def _defect_present() -> bool:
    from keras.src.losses import loss

    return "1.0 / num_replicas" in inspect.getsource(loss.scale_loss_for_distribution)


def _scale(stock: Callable) -> Callable:
    def scale_loss_for_distribution(value: Any) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(value)
        share = getattr(_local, "share", None)
        return value * tf.cast(batch.share if share is None else share, value.dtype)

    return scale_loss_for_distribution


def _unscale(stock: Callable) -> Callable:
    def unscale_loss_for_distribution(value: Any) -> Any:
        batch = current_batch()
        # If the number of rows is not static, the metric of an output's loss averages over replicas without weights.
        if batch is None or getattr(_local, "unweighted", False):
            return stock(value)
        return tf.math.divide_no_nan(value, tf.cast(batch.share, value.dtype))

    return unscale_loss_for_distribution


def _reduce(module: Any) -> Callable:
    stock = module.reduce_weighted_values

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        def call() -> Any:
            return stock(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)

        if current_batch() is None:
            return call()
        if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
            divisor = tf.reduce_sum(module.apply_mask(sample_weight, mask, dtype=tf.float32, reduction=reduction))
        elif mask is not None and reduction in ("mean", "sum_over_batch_size"):
            divisor = tf.reduce_sum(tf.cast(mask, tf.float32))
        else:
            return call()
        with temporarily(_local, share=tf.math.divide_no_nan(divisor, sum_over_replicas(divisor))):
            return call()

    return reduce_weighted_values


def _compile_loss_call(stock: Callable) -> Callable:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with temporarily(_local, unweighted=tf.nest.flatten(y_pred)[0].shape[0] is None):
            return stock(self, y_true, y_pred, sample_weight)

    return call


def _with_global_batch(stock: Callable) -> Callable:
    def make_function(self: Any, step_function: Callable) -> Any:
        if self._distribute_strategy is None or self._distribute_strategy.num_replicas_in_sync == 1:
            return stock(self, step_function)

        def step(data: Any) -> Any:
            with global_batch(data):
                return step_function(data)

        return stock(self, step)

    return make_function


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.losses import loss
    from keras.src.trainers.compile_utils import CompileLoss

    loss.reduce_weighted_values = _reduce(loss)
    loss.scale_loss_for_distribution = _scale(loss.scale_loss_for_distribution)
    loss.unscale_loss_for_distribution = _unscale(loss.unscale_loss_for_distribution)
    CompileLoss.call = _compile_loss_call(CompileLoss.call)
    TensorFlowTrainer._make_function = _with_global_batch(TensorFlowTrainer._make_function)


MEND = Mend(
    name="loss_divided_by_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="losses give every replica the same weight, whatever its number of rows, its unmasked steps and its sample "
    "weights: the loss of an uneven batch is wrong",
    rows=(
        "last batch smaller than the rest",
        "last batch of 3 rows",
        "last batch of 1 row: replicas that get none",
        "smaller last batch, regularizers and several outputs",
        "masked loss, other numbers of valid steps on each replica",
        "sample_weight, loss divided by its sum",
    ),
)
