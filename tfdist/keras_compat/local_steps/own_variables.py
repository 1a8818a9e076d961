"""OwnVariables: the variables whose values differ between replicas that train on their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.optimizers.base import held_variable
from tfdist.keras_compat.optimizers.hooked import hook_of, optimizers_of
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
        for owner, optimizer, hook in self._optimizers():
            slots = slots_of(optimizer) if _is_built(optimizer) else []
            trained = [*hook.trained, *self._trained(owner, optimizer)]
            found |= {id(held_variable(variable)) for variable in [*trained, *slots]}
        return found

    def build(self, strategy: Any) -> None:
        """Makes what the first step would make for replicas that train on their own.

        Args:
            strategy: the strategy of the models.
        """
        for owner, optimizer, hook in self._optimizers():
            trained = self._trained(owner, optimizer)
            if trained:
                hook.build_before_steps(strategy, trained)

    def _trained(self, owner: Any, optimizer: Any) -> list[Any]:
        """Returns the variables that an optimizer trains, in its order; none if it is not built yet."""
        if getattr(owner, "optimizer", None) is optimizer:
            return list(owner.trainable_variables) if getattr(owner, "built", True) else []
        listed = getattr(optimizer, "_trainable_variables", None)
        if listed is not None:
            return list(listed)
        # Keras 2 keeps only what identifies the variables, by which they are found in the models.
        places = getattr(optimizer, "_index_dict", {})
        found = {}
        for one in self._objects:
            known = getattr(one, "trainable_variables", None) if getattr(one, "built", True) else None
            for variable in known or []:
                place = places.get(optimizer._var_key(variable))
                if place is not None:
                    found[place] = variable
        return [found[place] for place in sorted(found)]

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Gives each replica the values with which its training goes on, within the context."""
        with contextlib.ExitStack() as stack:
            for _, _, hook in self._optimizers():
                stack.enter_context(hook.own())
            yield

    def _optimizers(self) -> list[tuple[Any, Any, UpdateHook]]:
        """Returns the optimizers whose replicas differ, each with the object that it was found in, and its hook."""
        found: dict[int, tuple[Any, Any, UpdateHook]] = {}
        for one in self._objects:
            for optimizer in optimizers_of(one) or [one]:
                hook = hook_of(optimizer)
                if hook is not None and hook.lets_replicas_differ:
                    found.setdefault(id(hook), (one, optimizer, hook))
        return list(found.values())


def _is_built(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "built", False) or getattr(optimizer, "_built", False))
