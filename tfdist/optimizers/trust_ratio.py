"""The trust ratio of LAMB and LARS, which makes the step of a variable proportional to the norm of the variable."""

from __future__ import annotations

import tensorflow as tf

from tfdist.optimizers.fused import under_xla


def norm(value: tf.Tensor) -> tf.Tensor:
    """Returns the Euclidean norm of all elements as a scalar, in float32 for float16 and bfloat16.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers.trust_ratio import norm
        >>> float(norm(tf.constant([[3.0], [4.0]])))
        5.0
    """
    if value.dtype.size < tf.float32.size:
        value = tf.cast(value, tf.float32)
    if not under_xla():
        return tf.sqrt(2 * tf.nn.l2_loss(value))
    # On CPU, XLA sums the last dimension element by element, but many elements of the other dimensions at a time.
    leading = list(range(value.shape.rank - 1)) if value.shape.rank else []
    return tf.sqrt(tf.reduce_sum(tf.reduce_sum(tf.square(value), leading)))


def bounded(ratio: tf.Tensor, low: float | None, high: float | None) -> tf.Tensor:
    """Returns the ratio within its bounds; a bound of None does not limit it."""
    if low is not None:
        ratio = tf.maximum(ratio, tf.cast(low, ratio.dtype))
    return ratio if high is None else tf.minimum(ratio, tf.cast(high, ratio.dtype))


def quotient_or_one(weight: tf.Tensor, other: tf.Tensor, quotient: tf.Tensor) -> tf.Tensor:
    """Returns the quotient if both norms are above 0, otherwise 1.

    A variable of zeros is thus updated as without a trust ratio. A norm that is NaN gives a ratio that is NaN, so that
    the error is noticed.
    """
    return tf.where(tf.equal(tf.minimum(weight, other), 0), tf.ones([], quotient.dtype), quotient)


def check_bounds(low: float | None, high: float | None) -> None:
    """Raises ValueError unless 0 <= low < high, for the bounds that are not None."""
    if (low is not None and low < 0) or (high is not None and high <= (low or 0)):
        raise ValueError(f"expected 0 <= min_trust_ratio < max_trust_ratio, received {low} and {high}.")
