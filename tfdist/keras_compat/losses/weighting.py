"""The weights with which the gradients and scalars of a replica count in the global batch.

All functions are called in replica context. Outside of the steps of fit, evaluate, train_on_batch and test_on_batch
they change nothing: in a loop of one's own, the program divides by the global batch, as TensorFlow documents it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.division import is_part
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch


def weighted_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Returns gradients whose sum over replicas is the gradient of the global batch.

    Args:
        gradients: dense gradients, IndexedSlices or None, of this replica.
    """
    batch = current_batch()
    if batch is None or not batch.is_replica_mean:
        return list(gradients)
    return [_weighted(gradient, batch) for gradient in gradients]


def rows_of_step() -> tf.Tensor | None:
    """Returns the number of rows of this replica, a float32 scalar; None where replicas count alike.

    Replicas count alike outside of the steps of fit, and where the program divides its losses for all replicas.
    """
    batch = current_batch()
    return batch.rows if batch is not None and batch.is_replica_mean else None


def _weighted(gradient: Any, batch: GlobalBatch) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times_share(gradient.values, batch), gradient.indices, gradient.dense_shape)
    return _times_share(tf.convert_to_tensor(gradient), batch)


def _times_share(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    # A mean over no rows is NaN. multiply_no_nan returns 0 where the share is 0.
    return tf.math.multiply_no_nan(value, batch.share(value.dtype))


def part_of_global(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns a tensor whose sum over replicas is the value of the global batch.

    Args:
        value: float tensor of this replica: a mean over its rows, or a part that the program has divided.
        batch: the global batch of the step.
    """
    if not batch.is_replica_mean and is_part(value, batch):
        return tf.identity(value)
    exact = value_of_global_batch(value, batch)
    return _times_share(value if exact is None else exact, batch)
