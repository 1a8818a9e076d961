"""Attaches an UpdateHook to an optimizer of the Keras in use.

The optimizer keeps its class. Some methods of the optimizer are replaced by callable objects, as attributes of this
optimizer only. A wrapper class is not used, because `compile`, loss scaling and saving check that an optimizer has a
Keras class, and because a file that names a class of tfdist could not be loaded without tfdist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.optimizers import keras2, keras3
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.version import keras_in_use


def attach(optimizer: Any, hook: UpdateHook) -> Any:
    """Makes an optimizer pass its gradients to a hook before each update; returns the optimizer.

    Args:
        optimizer: an optimizer of the Keras in use, built or not. For a LossScaleOptimizer, which unscales gradients
            itself, the hook is attached to the optimizer inside of it.
        hook: the hook, which is called before each update.

    Raises:
        ValueError: if the object is not an optimizer of the Keras in use, or if the optimizer has a hook already.
    """
    check_optimizer(optimizer)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        attach(inner, hook)
        # Otherwise a copy would be made from the configs of the two optimizers, which do not contain the hook.
        object.__setattr__(optimizer, "__reduce_ex__", Reduce(optimizer))
        return optimizer
    if hook_of(optimizer) is not None:
        raise ValueError(
            "expected an optimizer that is not distributed yet, received a distributed optimizer; wrap it only once."
        )
    optimizer._tfdist_hook = hook
    is_keras2 = not keras_in_use().is_keras3
    if is_keras2 and not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        # Keras 2's legacy optimizers do not track their attributes: checkpoints would not contain the hook.
        optimizer._track_trackable(hook, "_tfdist_hook", overwrite=True)
    replacements = keras2.methods_of(optimizer) if is_keras2 else keras3.methods_of(optimizer)
    for name, method in {**replacements, "__reduce_ex__": Reduce(optimizer)}.items():
        # object.__setattr__, because the optimizer's own __setattr__ would track the method.
        object.__setattr__(optimizer, name, method)
    hook.attached(optimizer)
    return optimizer


def check_optimizer(optimizer: Any) -> None:
    """Raises ValueError if an object is not an optimizer of the Keras in use.

    Args:
        optimizer: any object.
    """
    kinds = [tf.keras.optimizers.Optimizer]
    legacy = getattr(tf.keras.optimizers, "legacy", None)
    if not keras_in_use().is_keras3 and legacy is not None:
        kinds.append(legacy.Optimizer)
    if not isinstance(optimizer, tuple(kinds)):
        raise ValueError(
            f"expected an optimizer of {keras_in_use().name}, received {type(optimizer).__name__}; make it with "
            "tf.keras.optimizers or tfdist.optimizers."
        )


class Reduce:
    """Pickles and deep-copies an optimizer with its hook.

    As in Keras 3, a copy has the options of the optimizer. Slots, and residuals of the hook, are not copied.

    Args:
        optimizer: an optimizer that has a hook.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(self, protocol: Any) -> tuple[Any, ...]:
        """Returns a function that makes an equal optimizer, and the arguments of the function, as pickle expects."""
        hook = hook_of(self._optimizer)
        assert hook is not None
        return _rebuilt, (type(self._optimizer), self._optimizer.get_config(), *hook.recipe())


def _rebuilt(kind: type, config: dict[str, Any], make: Callable[..., UpdateHook], options: tuple[Any, ...]) -> Any:
    return attach(kind.from_config(config), make(*options))  # type: ignore[attr-defined]
