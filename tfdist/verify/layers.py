"""The layers of a model whose results can differ between one device and several replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

# Parts of the names of Keras's layers that draw random numbers while a model trains.
_NOISY = ("Dropout", "GaussianNoise", "Random", "Sampling")


def layers_of(model: Any) -> list[Any]:
    """Returns all layers of a model, also those within layers."""
    return list(model._flatten_layers(include_self=False))


def replica_normalizations(model: Any) -> list[str]:
    """Returns the names of the layers that normalize with the moments of a replica's own rows."""
    kind = tf.keras.layers.BatchNormalization
    return [
        layer.name
        for layer in layers_of(model)
        if isinstance(layer, kind) and not getattr(layer, "synchronized", False)
    ]


def is_noisy(layer: Any) -> bool:
    """Returns whether the class of a layer has the name of one that draws random numbers while the model trains."""
    return any(part in type(layer).__name__ for part in _NOISY)


def noisy_layers(model: Any) -> list[str]:
    """Returns the names and classes of the layers that draw random numbers while the model trains."""
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in layers_of(model)
        if is_noisy(layer) and getattr(layer, "rate", 1) != 0
    ]


def remove_noise(model: Any) -> None:
    """Makes the layers of Keras that draw random numbers return their inputs."""
    for layer in layers_of(model):
        is_of_keras = type(layer).__module__.split(".")[0] in ("keras", "tf_keras")
        if is_of_keras and is_noisy(layer):
            object.__setattr__(layer, "call", lambda inputs, *args, **kwargs: inputs)


def mixing_layers(model: Any, batch: Any) -> list[str]:
    """Returns the names of the layers whose output for a row depends on the other rows of the batch.

    BatchNormalization is left out: either replica_normalizations names it, or it is synchronized.

    Args:
        model: a built model.
        batch: a batch of training data, a structure of arrays.
    """
    x = tf.keras.utils.unpack_x_y_sample_weight(batch)[0]
    rows = len(tf.nest.flatten(x)[0])
    if rows < 2:
        return []
    try:
        whole = _calls(model, x)
        half = _calls(model, tf.nest.map_structure(lambda array: array[: rows // 2], x))
    except Exception:
        # A model that can only be called in its own train_step is not looked at.
        return []
    normalizations = [one.name for one in layers_of(model) if isinstance(one, tf.keras.layers.BatchNormalization)]
    # A layer after a mixing layer has other inputs too, and is not a cause by itself.
    return [
        name
        for name, (inputs, output) in whole.items()
        if name in half
        and name not in normalizations
        and _same_rows(inputs, half[name][0])
        and not _same_rows(output, half[name][1])
    ]


def _same_rows(whole: np.ndarray | None, half: np.ndarray | None) -> bool:
    """Returns whether the rows of a half batch are the first rows of the whole batch."""
    if whole is None or half is None or whole.dtype.kind != "f" or len(whole) // 2 != len(half):
        return True
    return bool(np.allclose(whole[: len(half)], half, rtol=1e-5, atol=1e-6))


def _calls(model: Any, x: Any) -> dict[str, tuple[np.ndarray | None, np.ndarray | None]]:
    """Returns the first input and output of each layer in training mode, by name; random layers add no noise."""
    found: dict[str, tuple[np.ndarray | None, np.ndarray | None]] = {}
    layers = layers_of(model)
    for layer in layers:
        noisy = is_noisy(layer)
        stock = layer.call

        def call(*args: Any, _stock: Any = stock, _name: str = layer.name, _noisy: bool = noisy, **kwargs: Any) -> Any:
            outputs = args[0] if _noisy else _stock(*args, **kwargs)
            found.setdefault(_name, (_first_array(args), _first_array(outputs)))
            return outputs

        object.__setattr__(layer, "call", call)
    try:
        model(tf.nest.map_structure(tf.convert_to_tensor, x), training=True)
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
    return found


def _first_array(values: Any) -> np.ndarray | None:
    """Returns the first tensor in a structure as an array, if it has axes."""
    for value in tf.nest.flatten(values):
        if hasattr(value, "numpy") and np.ndim(value):
            return np.asarray(value)
    return None
