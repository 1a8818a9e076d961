"""Weight decay as part of the update, and which variables have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist.keras_compat.optimizers.base import OptimizerBase
from tfdist.optimizers.exclusions import check_patterns, excluded


class DecayingOptimizer(OptimizerBase):
    """An optimizer whose step has the weight decay in it, with exclusions.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        weight_decay: times the variable; None is 0.
        exclude_from_weight_decay: regular expressions; variables in whose path one is found have no decay.
        name: of the optimizer.
        **options: of Keras's Optimizer.

    Raises:
        ValueError: for a negative decay, and for patterns that are a string or are found nowhere.
    """

    def __init__(
        self,
        *,
        learning_rate: Any,
        weight_decay: float | None,
        exclude_from_weight_decay: Sequence[str] | None,
        name: str,
        **options: Any,
    ) -> None:
        if weight_decay is not None and not weight_decay >= 0:
            raise ValueError(f"expected weight_decay to be 0 or more, received {weight_decay}; give another.")
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.weight_decay = float(weight_decay or 0.0)
        # The plain name is that of a method of Keras's.
        self._decay_patterns = check_patterns(exclude_from_weight_decay, "exclude_from_weight_decay") or ()
        self._undecayed: frozenset[int] = frozenset()

    def exclude_from_weight_decay(self, var_list: Sequence[Any] | None = None, var_names: Any = None) -> None:
        """Keras's way to exclude variables, before the optimizer is built.

        Args:
            var_list: variables; those of the last call count, and a config does not hold them.
            var_names: regular expressions as the option of this name has them, to which they are added.

        Raises:
            ValueError: once the optimizer is built.
        """
        if self.is_built():
            raise ValueError(
                "expected exclude_from_weight_decay before the optimizer is built, received it after; call it first."
            )
        super().exclude_from_weight_decay(var_list=var_list)
        self._decay_patterns += check_patterns(var_names, "var_names") or ()

    def check_variables(self, variables: list[Any], paths: list[str]) -> None:
        """Resolves the exclusions."""
        self._undecayed = excluded(self._decay_patterns, paths, "exclude_from_weight_decay")
        if hasattr(self, "_exclude_from_weight_decay"):
            self._undecayed |= {i for i, variable in enumerate(variables) if not self._use_weight_decay(variable)}

    def decay_of(self, index: int) -> float:
        """Returns the weight decay of a variable."""
        return 0.0 if index in self._undecayed else self.weight_decay

    def get_config(self) -> dict[str, Any]:
        """Returns all arguments."""
        return {
            **super().get_config(),
            "weight_decay": self.weight_decay,
            "exclude_from_weight_decay": list(self._decay_patterns),
        }
