"""slots_of: the variables in which an optimizer remembers past gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.optimizers.base import held_variable


def slots_of(optimizer: Any) -> list[tf.Variable]:
    """Returns the floating-point variables of an optimizer, without its learning rate and its step counter.

    Args:
        optimizer: a built optimizer of the Keras in use.
    """
    variables = optimizer.variables
    others = [getattr(optimizer, name, None) for name in ("_learning_rate", "iterations")]
    known = {id(held_variable(one)) for one in others if one is not None}
    found = [held_variable(one) for one in (variables() if callable(variables) else variables)]
    return [one for one in found if id(one) not in known and tf.as_dtype(one.dtype).is_floating]
