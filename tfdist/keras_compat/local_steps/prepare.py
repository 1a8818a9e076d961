"""prepare_local_steps: checks an optimizer, and lets evaluation, saving and callbacks of Keras see averages."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.local_steps.seen_by_keras import show_seen_values
from tfdist.keras_compat.optimizers.attach import check_optimizer
from tfdist.keras_compat.version import keras_in_use


def prepare_local_steps(optimizer: Any, program: str) -> None:
    """Prepares the Keras in use for an optimizer whose replicas meet only from time to time.

    Args:
        optimizer: the optimizer.
        program: name of the algorithm, for messages.

    Raises:
        ValueError: if the object is no optimizer, or has options that need all replicas in every step.
    """
    check_optimizer(optimizer)
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        raise ValueError(
            f"expected an optimizer of tf.keras.optimizers for {program}, received the legacy optimizer "
            f"{type(optimizer).__name__}; take the optimizer of tf.keras.optimizers."
        )
    if hasattr(optimizer, "inner_optimizer"):
        raise ValueError(
            f"expected gradients without a loss scale for {program}, received a LossScaleOptimizer; use the policy "
            "mixed_bfloat16."
        )
    refused = {"use_ema": False, "gradient_accumulation_steps": None}
    for name, allowed in refused.items():
        value = getattr(optimizer, name, None)
        if value and value != allowed:
            raise ValueError(f"expected an optimizer with {name}={allowed} for {program}, received {name}={value}.")
    if keras_in_use().name != "keras3" and getattr(optimizer, "jit_compile", False):
        optimizer.jit_compile = False
    show_seen_values()


def refuse_constraints(variables: Any, program: str) -> None:
    """Raises ValueError if a variable has a constraint, which Keras would assign to all replicas alike.

    Args:
        variables: the trained variables.
        program: name of the algorithm, for the message.
    """
    constrained = [variable.name for variable in variables if getattr(variable, "constraint", None) is not None]
    if constrained:
        raise ValueError(
            f"expected variables without constraints for {program}, received {', '.join(constrained)} with a "
            "constraint."
        )
