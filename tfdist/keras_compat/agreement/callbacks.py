"""Callbacks of Keras that change the training, as plain values that the workers compare.

A callback that ends the training, or sets the learning rate, on one worker only lets the workers train different
models, or lets the others wait for ever. A callback that only writes may be given on the chief alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.optimizers.hooked import hook_of_local_steps

_CHANGE_TRAINING = (
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TerminateOnNaN",
)
_END_TRAINING = ("EarlyStopping", "TerminateOnNaN")
# The chief may restore the best weights alone if it alone saves them; later calls compare the weights themselves.
_NOT_COMPARED = {"verbose", "restore_best_weights"}


def changing_callbacks(model: Any, call: str, arguments: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]] | None:
    """Returns the callbacks of Keras that change the training, by class, each with the arguments that decide when.

    Args:
        model: the model that is trained.
        call: name of the method, such as "fit".
        arguments: arguments of the method, with their defaults.

    Returns:
        None for a method other than fit. A subclass counts as the class of Keras. Workers that make steps on their own
        end together when one of them asks for it (see local_steps/stop_together.py), so that only one may ask.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.agreement.callbacks import changing_callbacks
        >>> found = changing_callbacks(None, "fit", {"callbacks": [tf.keras.callbacks.EarlyStopping("loss")]})
        >>> found["EarlyStopping"][0]["monitor"]
        'loss'
    """
    if call != "fit":
        return None
    given = arguments.get("callbacks")
    end_together = _END_TRAINING if hook_of_local_steps(model) is not None else ()
    found: dict[str, list[dict[str, Any]]] = {}
    # A list of callbacks, one callback, or the list that Keras makes of them.
    for callback in tf.nest.flatten(getattr(given, "callbacks", given)):
        for name in _CHANGE_TRAINING:
            kind = getattr(tf.keras.callbacks, name, None)
            if kind is not None and isinstance(callback, kind) and name not in end_together:
                found.setdefault(name, []).append({"class": name, **_arguments(kind, callback)})
                break
    # The order in which a program lists them does not matter.
    return {name: sorted(found[name], key=repr) for name in sorted(found)}


def _arguments(kind: Any, callback: Any) -> dict[str, Any]:
    names = [name for name in inspect.signature(kind).parameters if name not in _NOT_COMPARED]
    values = {name: vars(callback).get(name) for name in names}
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    # Keras changes the sign of min_delta when a training begins.
    if isinstance(plain.get("min_delta"), (int, float)):
        plain["min_delta"] = abs(plain["min_delta"])
    return {name: value for name, value in plain.items() if isinstance(value, (bool, int, float, str))}
