"""The weights with which the gradients and scalars of a replica count in the global batch.

All functions are called in replica context. Outside of the steps of fit, evaluate, train_on_batch and test_on_batch
they change nothing: in a loop of one's own, the program divides by the global batch, as TensorFlow documents it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.division import is_part
from tfdist.keras_compat.losses.functions_of_gradients import of_all_replicas
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch
from tfdist.keras_compat.losses.noted_gradients import Kind
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch


def weighted_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Returns gradients whose sum over replicas is the gradient of the global batch.

    Args:
        gradients: dense gradients, IndexedSlices or None, of this replica.
    """
    batch = current_batch()
    if batch is None:
        return list(gradients)
    # The shares of all replicas add up to 1, so that a tensor that is the same on all of them stays as it is. It is
    # added up all the same: if Python has made other operations of a replica, the sum is the same on all of them.
    exact = of_all_replicas(gradients, batch, least=Kind.OTHER)
    return [
        _part(own if one is None else one, batch, is_exact=one is not None)
        for own, one in zip(gradients, exact, strict=True)
    ]


def _part(gradient: Any, batch: GlobalBatch, *, is_exact: bool) -> Any:
    """Returns a gradient whose sum over replicas is that of the global batch."""
    if batch.is_replica_mean:
        return batch.times_share(gradient)
    if not is_exact:
        return gradient
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / replicas, gradient.indices, gradient.dense_shape)
    return gradient / replicas


def rows_of_step() -> tf.Tensor | None:
    """Returns the number of rows of this replica, a float32 scalar; None where replicas count alike.

    Replicas count alike outside of the steps of fit, and where the program divides its losses for all replicas.
    """
    batch = current_batch()
    return batch.rows if batch is not None and batch.is_replica_mean else None


def part_of_global(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns a tensor whose sum over replicas is the value of the global batch.

    Args:
        value: float tensor of this replica: a mean over its rows, or a part that the program has divided.
        batch: the global batch of the step.
    """
    if not batch.is_replica_mean and is_part(value, batch):
        return tf.identity(value)
    exact = value_of_global_batch(value, batch)
    return batch.times_share(value if exact is None else exact)
