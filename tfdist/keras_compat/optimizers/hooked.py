"""hook_of: finds the GradientHook that is attached to an optimizer."""

from __future__ import annotations

from typing import Any

from tfdist.allreduce.hook import GradientHook


def hook_of(optimizer: Any) -> GradientHook | None:
    """Returns the hook of an optimizer, or of the optimizer that a LossScaleOptimizer wraps; None if there is no hook.

    Args:
        optimizer: an optimizer of the Keras in use.
    """
    found = getattr(optimizer, "_tfdist_hook", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    return found if found is not None or inner is None else hook_of(inner)
