"""Attaches a GradientHook to an optimizer of the Keras in use.

The optimizer keeps its class: methods of this one object are replaced by callable objects, which are attributes of the
object. A wrapper class would not do, since `compile`, loss scaling and saving ask for an optimizer of Keras by its
class, and a file that names a class of tfdist could not be read without tfdist.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.allreduce.hook import GradientHook
from tfdist.allreduce.options import AllReduceOptions
from tfdist.keras_compat.optimizers import keras2, keras3
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.version import keras_in_use


def attach(optimizer: Any, hook: GradientHook) -> Any:
    """Sends the gradients of an optimizer through the hook from now on; returns the optimizer.

    Args:
        optimizer: of the Keras in use, built or not. A LossScaleOptimizer unscales gradients itself, and the optimizer
            that it wraps gets the hook.
        hook: called before the update.

    Raises:
        ValueError: if this is no optimizer of the Keras in use, and if it has a hook.
    """
    check_optimizer(optimizer)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        attach(inner, hook)
        # A copy of the whole would otherwise be made from the options of both, which say nothing of the hook.
        object.__setattr__(optimizer, "__reduce_ex__", Reduce(optimizer))
        return optimizer
    if hook_of(optimizer) is not None:
        raise ValueError("expected an optimizer that is not distributed yet, received one that is; wrap it once.")
    optimizer._tfdist_hook = hook
    is_keras2 = not keras_in_use().is_keras3
    if is_keras2 and not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        # Keras 2's legacy optimizers track none of their attributes, so that checkpoints would leave the hook out.
        optimizer._track_trackable(hook, "_tfdist_hook", overwrite=True)
    replacements = keras2.methods_of(optimizer) if is_keras2 else keras3.methods_of(optimizer)
    for name, method in {**replacements, "__reduce_ex__": Reduce(optimizer)}.items():
        # Past the optimizer's own __setattr__, which would track it.
        object.__setattr__(optimizer, name, method)
    return optimizer


def check_optimizer(optimizer: Any) -> None:
    """Raises ValueError if an object is no optimizer of the Keras in use.

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
    """Pickles and deep-copies an optimizer with its hook: by its options, as Keras 3 does, without slots and residuals.

    Args:
        optimizer: that has a hook.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def __call__(self, protocol: Any) -> tuple[Any, ...]:
        """Returns a function and the arguments with which it makes an equal optimizer, as pickle expects."""
        hook = hook_of(self._optimizer)
        assert hook is not None
        return _rebuilt, (type(self._optimizer), self._optimizer.get_config(), hook.path.asked, hook.passes)


def _rebuilt(kind: type, config: dict[str, Any], options: AllReduceOptions | None, passes: int) -> Any:
    return attach(kind.from_config(config), GradientHook(options, passes))  # type: ignore[attr-defined]
