"""Finds the UpdateHook that is attached to an optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from tfdist.allreduce.update_hook import UpdateHook, variable_key
from tfdist.keras_compat.optimizers.base import held_variable

_hooks: weakref.WeakValueDictionary[Any, UpdateHook] = weakref.WeakValueDictionary()


def remember_trained(hook: UpdateHook, variables: Sequence[Any]) -> None:
    """Lets `hook_that_trains` find a hook.

    Args:
        hook: a hook whose replicas train on their own.
        variables: the variables that its steps train.
    """
    _hooks.update({variable_key(held_variable(variable)): hook for variable in variables})


def hook_that_trains(model: Any) -> UpdateHook | None:
    """Returns the hook of a model's optimizer, or of the optimizer of a loop that trains the model; None without one.

    Args:
        model: a Keras model, compiled or not.
    """
    found = hook_of_model(model)
    if found is not None or not _hooks or not getattr(model, "built", False):
        return found
    keys = (variable_key(held_variable(variable)) for variable in getattr(model, "trainable_variables", ()))
    return next((_hooks[key] for key in keys if key in _hooks), None)


def hook_of(optimizer: Any) -> UpdateHook | None:
    """Returns the hook of an optimizer, or of the optimizer that a LossScaleOptimizer wraps; None if there is no hook.

    Args:
        optimizer: an optimizer of the Keras in use.
    """
    found = getattr(optimizer, "_tfdist_hook", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    return found if found is not None or inner is None else hook_of(inner)


def hook_of_model(model: Any) -> UpdateHook | None:
    """Returns the hook of a model's optimizer; None if there is no hook, or not a single optimizer.

    Args:
        model: a Keras model, compiled or not.
    """
    optimizer = getattr(model, "optimizer", None)
    return None if optimizer is None or isinstance(optimizer, (list, tuple, dict)) else hook_of(optimizer)


def hook_of_local_steps(model: Any) -> UpdateHook | None:
    """Returns the hook of a model's optimizer if the replicas make steps without the others, else None.

    Args:
        model: a Keras model, compiled or not.
    """
    hook = hook_of_model(model)
    return hook if hook is not None and hook.counts_alone else None
