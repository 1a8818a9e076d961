"""convert_sync_batchnorm: an existing model, with batch normalization over the global batch."""

from __future__ import annotations

from typing import Any

from tfdist.keras_compat.layers.batch_normalization import all_layers, forget_traces, refuse_unsupported, remember_fused
from tfdist.keras_compat.version import keras
from tfdist.layers.sync_batch_normalization import SyncBatchNormalization


def convert_sync_batchnorm(model: Any) -> Any:
    """Makes every BatchNormalization of a model a SyncBatchNormalization, in place, and returns the model.

    Weights, names, shared layers, the optimizer and its state stay as they are. Make or load the model under
    `strategy.scope()`, then convert it. A saved model is a plain Keras model; convert it again after loading.

    Args:
        model: functional, Sequential, nested or of a class of its own; built or not, compiled or not.

    Raises:
        ValueError: for a model without batch normalization, for a layer with renorm, virtual_batch_size or
            adjustment, or several axes, and for a subclass of BatchNormalization, whose code nobody can rewrite.

    Example:
        >>> from tfdist.keras_compat.version import keras
        >>> from tfdist.layers import SyncBatchNormalization, convert_sync_batchnorm
        >>> layers = keras().layers
        >>> model = keras().Sequential([layers.Input((4,)), layers.Dense(2), layers.BatchNormalization()])
        >>> isinstance(convert_sync_batchnorm(model).layers[-1], SyncBatchNormalization)
        True
    """
    stock = keras().layers.BatchNormalization
    found = [layer for layer in all_layers(model) if isinstance(layer, stock)]
    if not found:
        raise ValueError(
            f"expected a model with batch normalization, received {model.name!r} without; leave the conversion out."
        )
    plain = []
    for layer in found:
        if issubclass(type(layer), SyncBatchNormalization):
            continue
        if type(layer) is not stock:
            raise ValueError(
                f"expected Keras's own BatchNormalization, received {layer.name!r} of the class "
                f"{type(layer).__name__}; write it on top of tfdist.layers.SyncBatchNormalization."
            )
        refuse_unsupported(vars(layer))
        plain.append(layer)
    # All are looked at before the first is changed.
    for layer in plain:
        remember_fused(layer)
        layer.__class__ = SyncBatchNormalization
        layer.synchronized = True
    forget_traces(model)
    return model
