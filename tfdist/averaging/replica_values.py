"""The variables and the shares of replicas that train on their own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.allreduce.aggregation import is_dense, sum_gradients


def common_variable(name: str, initial: Any) -> tf.Variable:
    """Returns a variable of whole numbers that are equal on all replicas; called in the scope of the strategy."""
    return tf.Variable(
        tf.constant(initial, tf.int64),
        trainable=False,
        name=name,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def components(variable: Any) -> tuple[Any, ...]:
    """Returns the variables that a variable has on the replicas of this process."""
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)


def share_of_replica(rows: tf.Tensor) -> tf.Tensor:
    """Returns the share that a replica has of the rows of all replicas, a scalar; equal shares if there are no rows.

    Args:
        rows: the rows of this replica, a float scalar. Called in replica context.
    """
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    total: Any = sum_gradients([rows])[0]
    return tf.where(total > 0, tf.math.divide_no_nan(rows, total), tf.ones_like(rows) / replicas)


def times(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns a tensor times a scalar of any dtype."""
    return value * tf.cast(weight, value.dtype)


def multiplied(gradient: Any, factor: int) -> Any:
    """Returns a gradient, dense, sparse or None, times a whole number."""
    if gradient is None or factor == 1:
        return gradient
    if is_dense(gradient):
        return gradient * tf.cast(factor, gradient.dtype)
    return tf.IndexedSlices(
        gradient.values * tf.cast(factor, gradient.values.dtype), gradient.indices, gradient.dense_shape
    )
