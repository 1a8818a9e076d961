"""Mean and variance of the global batch, to the last digits even where the mean is far larger than the deviation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Moments:
    """Statistics of the global batch, in the shape that broadcasts against the inputs.

    Attributes:
        centered: inputs minus their mean.
        mean: of the global batch.
        variance: of the global batch, with the count as the divisor.
        count: how many elements each mean is of.
    """

    centered: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor
    count: tf.Tensor


def global_moments(inputs: tf.Tensor, axes: Sequence[int], weights: tf.Tensor | None = None) -> Moments:
    """Returns the moments of all replicas' inputs together; within a strategy to be called in replica context.

    A first sum over replicas finds a number near the mean, a second one the moments of what lies beside it: nothing
    large is subtracted from something large, as in the mean of squares minus the square of the mean. A replica without
    rows adds nothing to the sums, and takes part in them.

    Args:
        inputs: float32 or float64.
        axes: to take the mean over.
        weights: of the inputs, broadcastable to them; None weighs all alike.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.layers.global_moments import global_moments
        >>> found = global_moments(tf.constant([[9999.0], [10001.0]]), [0])
        >>> found.mean.numpy().tolist(), found.variance.numpy().tolist()
        ([[10000.0]], [[1.0]])
    """
    if weights is None:
        shape = tf.shape(inputs)
        count = tf.cast(tf.reduce_prod([shape[axis] for axis in axes]), inputs.dtype)
    else:
        weights = tf.cast(weights, inputs.dtype) * tf.ones_like(inputs)
        count = tf.reduce_sum(weights, axes, keepdims=True)

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values if weights is None else values * weights, axes, keepdims=True)

    around, count = _over_replicas([total(inputs), count])
    count = tf.stop_gradient(count)
    around = tf.stop_gradient(tf.math.divide_no_nan(around, count))
    shifted = inputs - around
    rest, squares = _over_replicas([total(shifted), total(tf.square(shifted))])
    rest = tf.math.divide_no_nan(rest, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(rest), 0.0)
    return Moments(shifted - rest, around + rest, variance, count)


def _over_replicas(values: list[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    # Outside of replicas is where Keras builds a model; one replica has nothing to add.
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))
