"""Finds the UpdateHook that is attached to an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from tfdist.allreduce.update_hook import UpdateHook, variable_key
from tfdist.keras_compat.optimizers.base import held_variable

# By the keys of variables. A variable keeps its hook alive: whether a worker finds one may not depend on when Python
# collects an optimizer that the program has dropped.
_hooks: weakref.WeakValueDictionary[Any, UpdateHook] = weakref.WeakValueDictionary()
_KEPT = "_tfdist_trained_by"


def remember_trained(hook: UpdateHook, variables: Sequence[Any]) -> None:
    """Lets `hooks_that_train` find a hook.

    Args:
        hook: a hook whose replicas train on their own.
        variables: the variables that its steps train.
    """
    for variable in map(held_variable, variables):
        _hooks[variable_key(variable)] = hook
        setattr(variable, _KEPT, hook)


def forget(hooks: Sequence[UpdateHook]) -> None:
    """Lets `hooks_that_train` find hooks no longer, because another optimizer trains their variables.

    Args:
        hooks: what was remembered.
    """
    for key in [key for key, hook in list(_hooks.items()) if hook in hooks]:
        _hooks.pop(key, None)
    for hook in hooks:
        for variable in hook.trained:
            if getattr(variable, _KEPT, None) is hook:
                delattr(variable, _KEPT)


def hooks_that_trained(variables: Sequence[Any]) -> list[UpdateHook]:
    """Returns the hooks that have been remembered for variables, each once.

    Args:
        variables: of TensorFlow or Keras.
    """
    keys = (variable_key(held_variable(variable)) for variable in variables) if _hooks else ()
    return _each_once(_hooks[key] for key in keys if key in _hooks)


def hooks_that_train(model: Any) -> list[UpdateHook]:
    """Returns the hooks of a model's optimizers, and of the optimizers of a loop that trains the model, each once.

    Args:
        model: a Keras model, compiled or not.
    """
    found = hooks_of_model(model)
    if not _hooks or not getattr(model, "built", False):
        return found
    # A layer that is frozen is trained no more, but its replicas may still differ.
    variables: Any = getattr(model, "weights", None) or getattr(model, "trainable_variables", ())
    return _each_once([*found, *hooks_that_trained(variables)])


def hooks_of_model(model: Any) -> list[UpdateHook]:
    """Returns the hooks of the optimizers of a model, each once: its `optimizer`, and its other attributes.

    Args:
        model: a Keras model, compiled or not. A GAN may have two attributes with an optimizer each.
    """
    found = map(hook_of, optimizers_of(model))
    return _each_once(hook for hook in found if hook is not None)


def optimizers_of(model: Any) -> list[Any]:
    """Returns the optimizers of a model: its `optimizer`, or several of them, and its other attributes.

    Args:
        model: a Keras model, compiled or not; another object has none.
    """
    given = getattr(model, "optimizer", None)
    several = list(given.values()) if isinstance(given, dict) else given
    found = [*several] if isinstance(several, (list, tuple)) else [given]
    # The types are asked, because a distributed variable computes its value for a question.
    found += [one for one in getattr(model, "__dict__", {}).values() if hasattr(type(one), "apply_gradients")]
    return [optimizer for optimizer in found if optimizer is not None]


def _each_once(hooks: Iterable[UpdateHook]) -> list[UpdateHook]:
    return list({id(hook): hook for hook in hooks}.values())


def hook_of(optimizer: Any) -> UpdateHook | None:
    """Returns the hook of an optimizer, or of the optimizer that a LossScaleOptimizer wraps; None if there is no hook.

    Args:
        optimizer: an optimizer of the Keras in use.
    """
    found = getattr(optimizer, "_tfdist_hook", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    return found if found is not None or inner is None else hook_of(inner)


def hook_of_local_steps(model: Any) -> UpdateHook | None:
    """Returns the first hook of a model's optimizers with which replicas make steps without the others, else None.

    Args:
        model: a Keras model, compiled or not.
    """
    return next((hook for hook in hooks_of_model(model) if hook.counts_alone), None)
