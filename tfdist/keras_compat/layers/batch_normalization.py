"""Helpers of SyncBatchNormalization and its converter that depend on the Keras in use."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras, keras_in_use

# Options that normalize by other statistics than those of the batch, each with the value that switches it off.
_UNSUPPORTED: dict[str, Any] = {
    "renorm": False,
    "renorm_clipping": None,
    "renorm_momentum": 0.99,
    "virtual_batch_size": None,
    "adjustment": None,
}


def with_signature_of(layer_class: Any, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator that gives an `__init__(self, **options)` the signature of a Keras layer.

    Arguments are then accepted by position and by name, as in Keras. The decorated function receives all of them
    by name, with the defaults filled in.

    Args:
        layer_class: the class of the Keras layer.
        **defaults: defaults other than Keras's.
    """
    stock = inspect.signature(layer_class.__init__)
    signature = stock.replace(
        parameters=[
            parameter.replace(default=defaults.get(name, parameter.default))
            for name, parameter in stock.parameters.items()
        ]
    )
    layer_name, *_, keywords_name = signature.parameters

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def init(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            options = dict(bound.arguments)
            layer, keywords = options.pop(layer_name), options.pop(keywords_name)
            function(layer, **options, **keywords)

        init.__signature__ = signature  # type: ignore[attr-defined]
        return init

    return decorate


def refuse_unsupported(options: dict[str, Any]) -> None:
    """Raises ValueError for options that normalize by other statistics than those of one feature over the batch.

    Args:
        options: options of a BatchNormalization, by name; absent options have Keras's defaults.
    """
    given = [f"{name}={options[name]!r}" for name, off in _UNSUPPORTED.items() if options.get(name) not in (off, None)]
    if given:
        raise ValueError(
            f"expected batch normalization without {', '.join(_UNSUPPORTED)}, received {', '.join(given)}; "
            "keep Keras's BatchNormalization for this layer."
        )
    axis = options.get("axis", -1)
    if not isinstance(axis, int) and len(axis) != 1:
        raise ValueError(
            f"expected batch normalization with one feature axis, received axis={list(axis)}; flatten the axes into "
            "one, or keep Keras's BatchNormalization for this layer."
        )


def options_in_effect(layer: Any) -> dict[str, Any]:
    """Returns the options of a Keras BatchNormalization that change its results, by name.

    Args:
        layer: a BatchNormalization. The result has no renorm_clipping and renorm_momentum, which only change the
            results of a layer with renorm.
    """
    names = ["axis", "renorm", "virtual_batch_size", "adjustment"]
    return {name: value for name, value in vars(layer).items() if name in names}


class SavedAsPlainLayer:
    """Base class of a layer that Keras saves and clones as the Keras layer that it derives from.

    Keras saves a layer under the class that `__class__` reports. With this base class, `__class__` reports the Keras
    layer. A subclass lists this base before the Keras layer, and has the config of the Keras layer. Further subclasses
    are saved under their own class, since no Keras layer has their additions.
    """

    def _plain(self) -> type:
        if SavedAsPlainLayer not in type(self).__bases__:
            return type(self)
        return next(base for base in type(self).__mro__ if base.__module__.split(".")[0] in ("keras", "tf_keras"))

    def _become(self, value: type) -> None:
        object.__setattr__(self, "__class__", value)

    # Keras, pickle and mock read `__class__`; type() still returns the subclass.
    __class__ = property(_plain, _become)


def feature_axis(layer: Any) -> int:
    """Returns the feature axis of a BatchNormalization."""
    return layer.axis if isinstance(layer.axis, int) else layer.axis[0]


def unbiased_in_moving_variance(layer: Any) -> bool:
    """Returns whether Keras on one device would use the unbiased variance for the running variance.

    Keras 2 does so with its fused kernel, for images and volumes; Keras 3 never does.

    Args:
        layer: a built BatchNormalization.
    """
    if keras_in_use().is_keras3:
        return False
    fused = getattr(layer, "_tfdist_fused", None)
    if fused is not None:
        return bool(fused)
    ndim, axis = layer.input_spec.ndim, feature_axis(layer)
    return layer.compute_dtype != "float64" and (ndim == 4 or (ndim == 5 and axis in (1, 4)))


def epsilon_of_masked_moments() -> float:
    """Returns what Keras on one device adds to the divisor of the moments of masked data; Keras 2 adds nothing."""
    return float(keras().config.epsilon()) if keras_in_use().is_keras3 else 0.0


def rate_of_running_statistics(layer: Any, dtype: tf.DType) -> tf.Tensor:
    """Returns 1 - momentum as Keras on one device computes it: Keras 2 rounds it to float32 first.

    Args:
        layer: a BatchNormalization.
        dtype: dtype of the result.
    """
    rate = 1 - layer.momentum
    return tf.constant(rate, dtype) if keras_in_use().is_keras3 else tf.cast(tf.constant(rate, tf.float32), dtype)


def remember_fused(layer: Any, fused: bool | None) -> None:
    """Stores on a layer of Keras 2 whether one device would use the fused kernel.

    Args:
        layer: a BatchNormalization.
        fused: whether the kernel is used; None if Keras decides when the layer is built.
    """
    layer._tfdist_fused = fused


def training_branches(layer: Any, training: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Returns the result of `yes` if the layer is being trained, otherwise the result of `no`.

    Args:
        layer: a BatchNormalization; a frozen layer is not being trained.
        training: the `training` argument that the layer's `call` received.
        yes: called for training.
        no: called for inference.
    """
    if keras_in_use().is_keras3:
        return yes() if training and layer.trainable else no()
    training = layer._get_training_value(training)
    known = tf.get_static_value(training) if tf.is_tensor(training) else training
    if known is None and tf.is_tensor(training):
        # To find the shape of a layer's outputs, Keras 2 traces the layer with an unknown `training`.
        return tf.cond(tf.cast(training, tf.bool), yes, no)
    return yes() if known else no()


def all_layers(model: Any) -> Iterable[Any]:
    """Returns all layers of a model, including those of nested models and wrappers, each layer once."""
    return list({id(layer): layer for layer in model._flatten_layers()}.values())


def forget_traces(model: Any) -> None:
    """Deletes the traced functions of a compiled model, so that Keras traces them again."""
    for name in ("train_function", "test_function", "predict_function", "train_tf_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
