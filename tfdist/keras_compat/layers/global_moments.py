"""Mean and variance of the global batch, accurate even if the mean is far larger than the standard deviation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Moments:
    """Statistics of the global batch. The mean, variance and count broadcast against the inputs.

    Attributes:
        centered: inputs of this replica minus the mean, in the shape of the inputs.
        mean: mean of the global batch.
        variance: mean square of the inputs minus the mean.
        count: number of elements, or sum of weights, that each mean is taken over.
    """

    centered: tf.Tensor
    mean: tf.Tensor
    variance: tf.Tensor
    count: tf.Tensor


def global_moments(
    inputs: tf.Tensor, axes: Sequence[int], weights: tf.Tensor | None = None, *, epsilon: float = 0.0
) -> Moments:
    """Returns the moments of the inputs of all replicas; under a strategy, call it in replica context.

    A first sum over replicas gives a number near the mean; a second sum gives the moments of the inputs minus that
    number. The variance is therefore never a small difference of two large numbers, unlike the mean of squares minus
    the square of the mean. A replica without rows adds zeros to both sums.

    Args:
        inputs: float32 or float64 tensor.
        axes: the axes to take the mean over.
        weights: weights of the inputs, broadcastable to the inputs; None if all weights are equal.
        epsilon: added to the divisor of the mean and of the variance, as Keras 3 does where data are masked.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.layers.global_moments import global_moments
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

    near_mean, count = _sum_over_replicas([total(inputs), count])
    count = tf.stop_gradient(count)
    divisor = count + tf.cast(epsilon, count.dtype)
    near_mean = tf.stop_gradient(tf.math.divide_no_nan(near_mean, divisor))
    shifted = inputs - near_mean
    rest, squares = _sum_over_replicas([total(shifted), total(tf.square(shifted))])
    correction = tf.math.divide_no_nan(rest - near_mean * tf.cast(epsilon, count.dtype), divisor)
    squares += correction * (count * correction - 2 * rest)
    variance = tf.maximum(tf.math.divide_no_nan(squares, divisor), 0.0)
    return Moments(shifted - correction, near_mean + correction, variance, count)


def _sum_over_replicas(values: list[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    # Keras builds a model in cross-replica context, which has no replica context.
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, values))
