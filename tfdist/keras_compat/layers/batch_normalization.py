"""What a batch normalization of our own has to know about the Keras in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras_in_use

_UNSUPPORTED = ("renorm", "virtual_batch_size", "adjustment")


def refuse_unsupported(options: dict[str, Any]) -> None:
    """Raises ValueError for options whose statistics are not those of one feature over the batch."""
    given = [name for name in _UNSUPPORTED if options.get(name)]
    if given:
        raise ValueError(
            f"expected batch normalization without {', '.join(_UNSUPPORTED)}, received {', '.join(given)}; "
            "leave it out, or keep the layer as it is."
        )
    axis = options.get("axis", -1)
    if not isinstance(axis, int) and len(axis) != 1:
        raise ValueError(
            f"expected batch normalization with one axis of features, received {list(axis)}; flatten them into one, or "
            "keep the layer as it is."
        )


class SavedAsPlainLayer:
    """Lets Keras take the instances of a subclass for those of its own layer where it saves and clones them.

    Comes before the layer of Keras among the bases of a class with the same config. Classes built on top of that one
    are saved as themselves: what they add is in no layer of Keras.
    """

    def _plain(self) -> type:
        if SavedAsPlainLayer not in type(self).__bases__:
            return type(self)
        return next(one for one in type(self).__mro__ if one.__module__.split(".")[0] in ("keras", "tf_keras"))

    def _become(self, value: type) -> None:
        object.__setattr__(self, "__class__", value)

    # What pickle, mock and Keras ask for; type() tells the truth.
    __class__ = property(_plain, _become)


def feature_axis(layer: Any) -> int:
    """Returns the axis of features."""
    return layer.axis if isinstance(layer.axis, int) else layer.axis[0]


def unbiased_in_moving_variance(layer: Any) -> bool:
    """Whether one device would keep the unbiased variance: the fused kernel of Keras 2 does, for images and volumes."""
    if keras_in_use().is_keras3:
        return False
    known = getattr(layer, "_tfdist_fused", None)
    if known is not None:
        return bool(known)
    ndim, axis = layer.input_spec.ndim, feature_axis(layer)
    return layer.compute_dtype != "float64" and (ndim == 4 or (ndim == 5 and axis in (1, 4)))


def remember_fused(layer: Any) -> None:
    """Lets a layer of Keras 2 remember whether its kernel was fused, before it is made another."""
    layer._tfdist_fused = getattr(layer, "fused", None)


def training_branches(layer: Any, training: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """Returns what one of two functions returns, as the layer is trained or not.

    Args:
        layer: a layer of batch normalization; one that is frozen is not trained.
        training: as its `call` received it.
        yes: for training.
        no: for inference.
    """
    if keras_in_use().is_keras3:
        return yes() if training and layer.trainable else no()
    training = layer._get_training_value(training)
    known = tf.get_static_value(training) if tf.is_tensor(training) else training
    if known is None and tf.is_tensor(training):
        # Keras 2 traces a layer with an unknown phase where it only wants to know the shape of its outputs.
        return tf.cond(tf.cast(training, tf.bool), yes, no)
    return yes() if known else no()


def all_layers(model: Any) -> Iterable[Any]:
    """Returns all layers of a model, those of nested models and of wrappers too, each once."""
    return list({id(layer): layer for layer in model._flatten_layers()}.values())


def forget_traces(model: Any) -> None:
    """Makes a compiled model trace its steps anew."""
    for name in ("train_function", "test_function", "predict_function", "train_tf_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
