"""Mends synchronized BatchNormalization, whose variance loses all digits if the mean is far larger than the deviation.

Keras computes the variance over replicas as the mean of squares minus the square of the mean. On one device without
`synchronized=True` it subtracts the mean first. In float32, features with a mean of 10,000 deviations make the losses
of synchronized layers infinite or NaN, and those of one device fall. With the mend both compute the same. Keras 3 also
leaves masked data to each replica.

Source: _compute_moments_sync and BatchNormalization._moments in Keras 3, _sync_calculate_mean_and_var in Keras 2. No
upstream issue is known.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.layers.batch_normalization import epsilon_of_masked_moments
from tfdist.keras_compat.layers.global_moments import global_moments
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.version import keras, keras_in_use


def _defect_present() -> bool:
    if keras_in_use().is_keras3:
        return "squared_sum" in inspect.getsource(
            importlib.import_module("keras.src.backend.tensorflow.nn")._compute_moments_sync
        )
    return "squared_sum" in inspect.getsource(keras().layers.BatchNormalization._sync_calculate_mean_and_var)


def _apply() -> None:
    kind = keras().layers.BatchNormalization
    if not keras_in_use().is_keras3:
        (owner,) = (one for one in kind.__mro__ if "_sync_calculate_mean_and_var" in vars(one))
        owner._sync_calculate_mean_and_var = _mean_and_variance
        return
    stock = kind._moments

    def moments(self: Any, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        if not self.synchronized:
            return stock(self, inputs, mask)
        return _mean_and_variance(self, inputs, self._reduction_axes, keep_dims=False, mask=mask)

    kind._moments = moments


def _mean_and_variance(
    layer: Any, inputs: tf.Tensor, reduction_axes: Any, keep_dims: bool, mask: Any = None
) -> tuple[tf.Tensor, tf.Tensor]:
    wide = tf.cast(inputs, tf.float64 if inputs.dtype == tf.float64 else tf.float32)
    weights = None if mask is None else tf.expand_dims(tf.cast(mask, wide.dtype), -1)
    epsilon = 0.0 if mask is None else epsilon_of_masked_moments()
    found = global_moments(wide, reduction_axes, weights, epsilon=epsilon)
    mean, variance = (tf.cast(one, inputs.dtype) for one in (found.mean, found.variance))
    return (mean, variance) if keep_dims else (tf.squeeze(mean, reduction_axes), tf.squeeze(variance, reduction_axes))


MEND = Mend(
    name="moments_lose_digits",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`BatchNormalization(synchronized=True)` computes variances that are wrong, or NaN, in float32 if a mean is "
    "far larger than its deviation; Keras 3 does not synchronize masked data",
    without_row="the rows are in float64",
)
