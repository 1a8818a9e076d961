"""convert_sync_batchnorm: gives an existing model batch normalization over the global batch."""

from __future__ import annotations

from typing import Any

from tfdist.keras_compat.layers.batch_normalization import (
    all_layers,
    forget_traces,
    options_in_effect,
    refuse_unsupported,
    remember_fused,
)
from tfdist.keras_compat.version import keras
from tfdist.layers.sync_batch_normalization import SyncBatchNormalization


def convert_sync_batchnorm(model: Any) -> Any:
    """Turns every BatchNormalization of a model into a SyncBatchNormalization, in place, and returns the model.

    Weights, names, shared layers, the optimizer and its state stay as they are. Make or load the model under
    `strategy.scope()`, then convert it. The converted model is saved as a plain Keras model: after loading, convert it
    again.

    Args:
        model: a Keras model: functional, Sequential, nested or a subclass of Model; built or not, compiled or not.

    Raises:
        ValueError: if the model has no batch normalization; if a layer has renorm, virtual_batch_size, adjustment or
            several feature axes; or if a layer has a subclass of BatchNormalization that does not derive from
            SyncBatchNormalization, because the code of a subclass cannot be converted. The model is then unchanged.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm
        >>> layers = tf.keras.layers
        >>> model = tf.keras.Sequential([layers.Input((4,)), layers.Dense(2), layers.BatchNormalization()])
        >>> isinstance(convert_sync_batchnorm(model).layers[-1], SyncBatchNormalization)
        True
    """
    stock = keras().layers.BatchNormalization
    found = [layer for layer in all_layers(model) if isinstance(layer, stock)]
    if not found:
        raise ValueError(f"expected a model with batch normalization, received the model {model.name!r} without it.")
    # Every layer is checked before the first one is changed.
    plain = []
    for layer in found:
        if issubclass(type(layer), SyncBatchNormalization):
            continue
        if type(layer) is not stock:
            raise ValueError(
                f"expected Keras's own BatchNormalization, received the layer {layer.name!r} of the class "
                f"{type(layer).__name__}; derive that class from tfdist.layers.SyncBatchNormalization."
            )
        refuse_unsupported(options_in_effect(layer))
        plain.append(layer)
    for layer in plain:
        remember_fused(layer, getattr(layer, "fused", None))
        layer.__class__ = SyncBatchNormalization
        layer.synchronized = True
    forget_traces(model)
    return model
