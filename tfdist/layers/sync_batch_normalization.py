"""SyncBatchNormalization: batch normalization over the global batch instead of over each replica's rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.layers.batch_normalization import (
    SavedAsPlainLayer,
    epsilon_of_masked_moments,
    feature_axis,
    rate_of_running_statistics,
    refuse_unsupported,
    remember_fused,
    training_branches,
    unbiased_in_moving_variance,
    with_signature_of,
)
from tfdist.keras_compat.layers.global_moments import Moments, global_moments
from tfdist.keras_compat.version import keras

_BatchNormalization: Any = keras().layers.BatchNormalization


class SyncBatchNormalization(SavedAsPlainLayer, _BatchNormalization):
    """BatchNormalization that computes its statistics over the global batch, like one device.

    Inputs may be of any floating dtype; the arithmetic is float32 or wider. Replicas may have different numbers of
    rows, or none. The layer works without a strategy, and under every strategy whose replicas train in step. It is
    saved as Keras's own BatchNormalization, so that a saved model loads without tfdist.

    Args:
        axis: int, the axis of the features.
        momentum: float, momentum of the running mean and variance.
        epsilon: float, added to the variance.
        center: bool, whether to add `beta`.
        scale: bool, whether to multiply by `gamma`.
        synchronized: has to be True.
        **kwargs: all further arguments of the BatchNormalization of the Keras in use, in Keras's order, with Keras's
            defaults and meaning: initializers, regularizers, constraints, and arguments of every layer, such as `name`
            and `dtype`.

    Raises:
        ValueError: for renorm, renorm_clipping, renorm_momentum, virtual_batch_size and adjustment, because their
            statistics are not those of the batch; for several axes; and for synchronized=False.

    Source: Chan, Golub and LeVeque (1983) on shifted sums. Keras's own synchronized=True computes the mean of squares
    minus the square of the mean, which loses all digits if the mean is large.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.layers import SyncBatchNormalization
        >>> layer = SyncBatchNormalization(epsilon=0.0)
        >>> layer(tf.constant([[9999.0], [10001.0]]), training=True).numpy().ravel().tolist()
        [-1.0, 1.0]
    """

    @with_signature_of(_BatchNormalization, synchronized=True)
    def __init__(self, **options: Any) -> None:
        refuse_unsupported(options)
        if not options["synchronized"]:
            raise ValueError(
                "expected synchronized=True for SyncBatchNormalization, received False; use Keras's BatchNormalization."
            )
        super().__init__(**options)
        remember_fused(self, options.get("fused"))

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalizes by the statistics of the global batch in training, otherwise by the running statistics.

        Args:
            inputs: tensor of a floating dtype, of any shape with the layer's feature axis.
            training: whether to take statistics from the batch and to update the running statistics.
            mask: bool tensor of the shape of the inputs without the last axis; True for the rows (or steps) that
                count. None if all count.

        Raises:
            ValueError: if the mask does not have one axis less than the inputs.
        """
        if mask is not None:
            _check_mask(mask, inputs)
        wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        axis = feature_axis(self) % len(wide.shape)

        def broadcast(values: Any) -> tf.Tensor:
            shape = [1] * len(wide.shape)
            shape[axis] = wide.shape[axis]
            return tf.reshape(tf.cast(tf.convert_to_tensor(values), wide.dtype), shape)

        def normalized(centered: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            # The mean is subtracted first, because beta - mean * scale would lose digits if the mean is large.
            scale = tf.math.rsqrt(variance + tf.constant(self.epsilon, wide.dtype))
            outputs = centered * (scale * broadcast(self.gamma) if self.scale else scale)
            outputs = outputs + broadcast(self.beta) if self.center else outputs
            return tf.cast(outputs, self.compute_dtype)

        def by_batch() -> tf.Tensor:
            axes = [other for other in range(len(wide.shape)) if other != axis]
            weights = None if mask is None else tf.expand_dims(mask, -1)
            moments = global_moments(wide, axes, weights, epsilon=0.0 if mask is None else epsilon_of_masked_moments())
            self._update_running(moments)
            return normalized(moments.centered, moments.variance)

        def by_running() -> tf.Tensor:
            return normalized(wide - broadcast(self.moving_mean), broadcast(self.moving_variance))

        return training_branches(self, training, by_batch, by_running)

    def _update_running(self, moments: Moments) -> None:
        variance = moments.variance
        if unbiased_in_moving_variance(self):
            variance *= tf.math.divide_no_nan(moments.count, moments.count - 1)
        # A batch without rows leaves the running statistics as they are.
        share = tf.where(moments.count > 0, rate_of_running_statistics(self, variance.dtype), 0)
        for running, found in ((self.moving_mean, moments.mean), (self.moving_variance, variance)):
            before = tf.cast(tf.convert_to_tensor(running), found.dtype)
            found = tf.reshape(tf.stop_gradient(found), before.shape)
            running.assign(before + (found - before) * tf.reshape(share, [-1]))


def _check_mask(mask: Any, inputs: Any) -> None:
    shape = tf.TensorShape(mask.shape)
    if shape.rank not in (None, len(inputs.shape) - 1):
        raise ValueError(
            f"expected a mask with one axis less than the inputs of shape {inputs.shape}, received a mask of shape "
            f"{shape}."
        )
