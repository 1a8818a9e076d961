"""DecayingOptimizer: weight decay as part of the update, and variables that are excluded from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tfdist.keras_compat.optimizers.base import OptimizerBase
from tfdist.optimizers.exclusions import check_patterns, excluded


class DecayingOptimizer(OptimizerBase):
    """Base of optimizers that apply weight decay inside their update, with exclusions.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        weight_decay: factor by which the variable is multiplied to give its decay; None means 0.
        exclude_from_weight_decay: regular expressions that are searched for in the paths of the variables; a variable
            that matches has no decay.
        name: name of the optimizer.
        **options: arguments of Keras's Optimizer.

    Raises:
        ValueError: for a negative decay, for patterns that are a bare string, and for a pattern that no path matches.
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
            raise ValueError(f"expected weight_decay to be 0 or more, received {weight_decay}.")
        super().__init__(learning_rate=learning_rate, name=name, **options)
        self.weight_decay = float(weight_decay or 0.0)
        # Not named exclude_from_weight_decay, because Keras has a method of this name.
        self._decay_patterns = check_patterns(exclude_from_weight_decay, "exclude_from_weight_decay") or ()
        self._undecayed: frozenset[int] = frozenset()

    def exclude_from_weight_decay(self, var_list: Sequence[Any] | None = None, var_names: Any = None) -> None:
        """Excludes variables from weight decay, like the method of this name in Keras.

        Args:
            var_list: variables to exclude; they replace the var_list of an earlier call, and the config omits them.
            var_names: regular expressions for variables to exclude, in addition to the patterns of the constructor.

        Raises:
            ValueError: if the optimizer is built already.
        """
        if self.is_built():
            raise ValueError(
                "expected a call of exclude_from_weight_decay before the optimizer is built, received a later call."
            )
        super().exclude_from_weight_decay(var_list=var_list)
        self._decay_patterns += check_patterns(var_names, "var_names") or ()

    def check_variables(self, variables: list[Any], paths: list[str]) -> None:
        """Finds the variables that the exclusions match."""
        self._undecayed = excluded(self._decay_patterns, paths, "exclude_from_weight_decay")
        if hasattr(self, "_exclude_from_weight_decay"):
            self._undecayed |= {i for i, variable in enumerate(variables) if not self._use_weight_decay(variable)}

    def decay_of(self, index: int) -> float:
        """Returns the weight decay of a variable."""
        return 0.0 if index in self._undecayed else self.weight_decay

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "weight_decay": self.weight_decay,
            "exclude_from_weight_decay": list(self._decay_patterns),
        }
