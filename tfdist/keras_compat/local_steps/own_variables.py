"""OwnVariables: the variables whose values differ between replicas that train on their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.keras_compat.optimizers.base import held_variable
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.optimizers.slots import slots_of


class OwnVariables:
    """Finds the variables of models and optimizers that have a hook of local steps.

    Args:
        objects: models, optimizers and other objects.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._objects = objects

    def differing(self) -> set[int]:
        """Returns the id() of each variable of TensorFlow whose values differ between replicas."""
        found: set[int] = set()
        for owner, optimizer in self._optimizers():
            trained = getattr(owner, "trainable_variables", None) if getattr(owner, "built", True) else None
            if owner is optimizer or trained is None:
                trained = getattr(optimizer, "_trainable_variables", None) or []
            slots = slots_of(optimizer) if _is_built(optimizer) else []
            found |= {id(held_variable(variable)) for variable in [*trained, *slots]}
        return found

    def build(self) -> None:
        """Makes what the first step of the models would make for replicas that train on their own."""
        for model, optimizer in self._optimizers():
            hook = hook_of(optimizer)
            assert hook is not None
            hook.build_before_steps(model.distribute_strategy, model.trainable_variables)

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Gives each replica the values with which its training goes on, within the context."""
        with contextlib.ExitStack() as stack:
            for _, optimizer in self._optimizers():
                hook = hook_of(optimizer)
                assert hook is not None
                stack.enter_context(hook.own())
            yield

    def _optimizers(self) -> list[tuple[Any, Any]]:
        """Returns the optimizers whose replicas differ, each with the object that it was found in."""
        found = []
        for one in self._objects:
            optimizer = getattr(one, "optimizer", one)
            hook = None if isinstance(optimizer, (list, tuple, dict)) else hook_of(optimizer)
            if hook is not None and hook.lets_replicas_differ:
                found.append((one, optimizer))
        return found


def _is_built(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "built", False) or getattr(optimizer, "_built", False))
