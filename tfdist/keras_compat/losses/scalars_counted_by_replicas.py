"""Mends Keras's Mean metric, which counts a scalar once for each replica, whatever its number of rows.

A scalar that a replica computes is the mean over its rows. With the mend it counts with the replica's share of the
rows, so that a Mean of the losses of batches is the Mean of a single device. A list of one scalar counts as the scalar,
and a vector of means over the rows, such as one for each feature, and a list of several means, as so many scalars.
A loss that the program divides for all replicas is counted as a part, so that its sum over replicas is reported. Values
with an axis count once for each row, and a scalar with a tensor as its weight has that weight, as on a single device.
Keras 3's mean of losses gives a batch the weight of the rows of its inputs. Targets may have other numbers of rows, by
which the losses of replicas are weighted; then this mean has the weight of all inputs.

Source: Mean.update_state in Keras 3's metrics/reduction_metrics.py and Reduce.update_state in Keras 2's
metrics/base_metric.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.division import is_part
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch, fraction, temporarily
from tfdist.keras_compat.losses.means_over_rows import are_means_over_rows
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import keras_in_use

# The mean of losses of the model whose step runs on this thread.
_local = threading.local()
_metrics_of_parts: weakref.WeakSet[Any] = weakref.WeakSet()


def _defect_present() -> bool:
    mean = tf.keras.metrics.Mean
    return "num_replicas" not in inspect.getsource(mean)


def _counted_by_rows(stock: Callable) -> Callable:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        batch = current_batch()
        if batch is None or not isinstance(self, tf.keras.metrics.Mean):
            return stock(self, values, sample_weight=sample_weight)
        if isinstance(values, (list, tuple)):
            values = [_of_global_batch(one, batch) for one in values]
        else:
            values = _of_global_batch(values, batch)
        values = tf.cast(tf.convert_to_tensor(_without_list(values, sample_weight, batch)), self.dtype)
        if values.shape.rank != 0 and (sample_weight is not None or not are_means_over_rows(values, batch)):
            return stock(self, values, sample_weight=sample_weight)
        # Without rows a mean is NaN, and the product of NaN and a weight of 0 would be NaN too.
        mean = tf.where(batch.rows > 0, values, tf.zeros_like(values))
        if _is_loss_tracker(self):
            inputs_of_row = fraction(batch.total_of_inputs, batch.total, self.dtype)
            return stock(self, mean, sample_weight=tf.cast(batch.rows, self.dtype) * inputs_of_row)
        if tf.is_tensor(sample_weight):
            return stock(self, mean, sample_weight=sample_weight)
        factor = 1 if sample_weight is None else sample_weight
        if _counts_parts(self, values, batch):
            # A replica without rows may have a part, too: its part of a regularizer.
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            return stock(self, values * replicas, sample_weight=factor / replicas)
        return stock(self, mean, sample_weight=batch.share(values.dtype) * factor)

    update_state.__doc__ = stock.__doc__
    return update_state


def _of_global_batch(value: Any, batch: GlobalBatch) -> Any:
    exact = value_of_global_batch(value, batch) if tf.is_tensor(value) else None
    return value if exact is None else exact


def _is_loss_tracker(metric: Any) -> bool:
    return metric is getattr(_local, "loss_tracker", None)


def _without_list(values: Any, sample_weight: Any, batch: GlobalBatch) -> Any:
    """Returns the only entry of values that have one entry for all rows of the replica, else the values."""
    if isinstance(values, (list, tuple)):
        # The entry itself is known to be a part of a loss, a tensor made from the list is not.
        is_one = len(values) == 1 and tf.convert_to_tensor(values[0]).shape.rank == 0
    else:
        # The axis of the rows is only known to have one entry if the replica is known to have one row.
        is_one = tf.is_tensor(values) and values.shape == [1] and batch.static_rows != 1
    if is_one and sample_weight is not None:
        is_one = tf.convert_to_tensor(sample_weight).shape.rank == 0
    return values[0] if is_one else values


def _counts_parts(metric: Any, value: tf.Tensor, batch: GlobalBatch) -> bool:
    """Returns whether a metric gets the parts of a loss that the program divides for all replicas."""
    if batch.is_replica_mean:
        return False
    if is_part(value, batch):
        _metrics_of_parts.add(metric)
    # A test_step differentiates nothing: its losses are recognized by the metric that train_step gave them to.
    return metric in _metrics_of_parts


def _tracking(stock: Callable) -> Callable:
    def step(self: Any, data: Any) -> Any:
        with temporarily(_local, loss_tracker=self._loss_tracker):
            return stock(self, data)

    return step


def _apply() -> None:
    if keras_in_use().is_keras3:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

        # In Keras 2 tfdist itself gives the mean of losses its weights.
        for name in ("train_step", "test_step"):
            patch_method(TensorFlowTrainer, name, _tracking)
    owner = next(base for base in tf.keras.metrics.Mean.__mro__ if "update_state" in vars(base))
    owner.update_state = _counted_by_rows(owner.update_state)


MEND = Mend(
    name="scalars_counted_by_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="Mean counts a scalar once for each replica, whatever its rows, and reports a loss that the program divides "
    "as 1 / number of replicas of it",
    rows=("train_step with tf.reduce_mean",),
)
