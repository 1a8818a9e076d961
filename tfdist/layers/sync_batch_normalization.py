"""SyncBatchNormalization: batch normalization over the global batch instead of over each replica's rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.layers.batch_normalization import (
    SavedAsPlainLayer,
    feature_axis,
    refuse_unsupported,
    training_branches,
    unbiased_in_moving_variance,
)
from tfdist.keras_compat.version import keras
from tfdist.layers.global_moments import Moments, global_moments

_BatchNormalization: Any = keras().layers.BatchNormalization


class SyncBatchNormalization(SavedAsPlainLayer, _BatchNormalization):
    """BatchNormalization whose statistics are those of one device on the whole global batch.

    For inputs of any floating dtype; the arithmetic is float32 or wider. Replicas may have different numbers of rows,
    or none. Works under every strategy whose replicas train in step, and without one. It is saved as Keras's own
    BatchNormalization, so that whoever loads it needs no tfdist.

    Args:
        **options: of Keras's BatchNormalization, without renorm, virtual_batch_size and adjustment.

    Raises:
        ValueError: for these three, whose statistics are not those of the batch, for several axes, and for
            synchronized=False.

    Source: keras-team/keras: its own synchronized=True takes the mean of squares minus the square of the mean, which
    loses all digits where the mean is large; Chan, Golub and LeVeque (1983) on shifted sums.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.layers import SyncBatchNormalization
        >>> layer = SyncBatchNormalization(epsilon=0.0)
        >>> layer(tf.constant([[9999.0], [10001.0]]), training=True).numpy().ravel().tolist()
        [-1.0, 1.0]
    """

    def __init__(self, **options: Any) -> None:
        refuse_unsupported(options)
        if not options.get("synchronized", True):
            raise ValueError(
                "expected a synchronized SyncBatchNormalization, received synchronized=False; use Keras's "
                "BatchNormalization."
            )
        super().__init__(**{**options, "synchronized": True})

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalizes by the global batch in training, else by the running statistics.

        Args:
            inputs: any shape with the feature axis of the layer.
            training: whether to take statistics from the batch, and to update the running ones.
            mask: rows (or steps) that count; of the shape of the inputs without the last axis.
        """
        wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
        axis = feature_axis(self) % len(wide.shape)

        def broadcast(values: Any) -> tf.Tensor:
            shape = [1] * len(wide.shape)
            shape[axis] = wide.shape[axis]
            return tf.reshape(tf.cast(tf.convert_to_tensor(values), wide.dtype), shape)

        def normalized(centered: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            # The mean is subtracted first: beta - mean * scale would lose what is small beside the mean.
            scale = tf.math.rsqrt(variance + tf.cast(self.epsilon, wide.dtype))
            outputs = centered * (scale * broadcast(self.gamma) if self.scale else scale)
            outputs = outputs + broadcast(self.beta) if self.center else outputs
            return tf.cast(outputs, self.compute_dtype)

        def by_batch() -> tf.Tensor:
            axes = [one for one in range(len(wide.shape)) if one != axis]
            weights = None if mask is None else tf.expand_dims(mask, -1)
            moments = global_moments(wide, axes, weights)
            self._update_running(moments)
            return normalized(moments.centered, moments.variance)

        def by_running() -> tf.Tensor:
            return normalized(wide - broadcast(self.moving_mean), broadcast(self.moving_variance))

        return training_branches(self, training, by_batch, by_running)

    def _update_running(self, moments: Moments) -> None:
        variance = moments.variance
        if unbiased_in_moving_variance(self):
            variance *= tf.math.divide_no_nan(moments.count, moments.count - 1)
        # Nothing is learned from a batch without a row.
        share = tf.where(moments.count > 0, tf.cast(1 - self.momentum, variance.dtype), 0)
        for running, found in ((self.moving_mean, moments.mean), (self.moving_variance, variance)):
            before = tf.cast(tf.convert_to_tensor(running), found.dtype)
            found = tf.reshape(tf.stop_gradient(found), before.shape)
            running.assign(before + (found - before) * tf.reshape(share, [-1]))
