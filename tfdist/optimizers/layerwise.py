"""LayerwiseOptimizer: the exclusions and the bounds of the trust ratio that LAMB and LARS share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.optimizers.base import is_shard
from tfdist.optimizers.decaying import DecayingOptimizer
from tfdist.optimizers.exclusions import check_patterns, excluded
from tfdist.optimizers.trust_ratio import bounded, check_bounds, quotient_or_one


class LayerwiseOptimizer(DecayingOptimizer):
    """Base of optimizers that move each variable in proportion to the norm of the variable.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        weight_decay: factor by which the variable is multiplied to give its decay, which the trust ratio scales too.
        exclude_from_weight_decay: regular expressions that are searched for in the paths of the variables; a variable
            that matches has no decay.
        exclude_from_adaptation: regular expressions for variables without a trust ratio; None uses the patterns of
            exclude_from_weight_decay, and [] excludes no variable.
        min_trust_ratio: lower bound of the trust ratio, or None.
        max_trust_ratio: upper bound of the trust ratio, or None.
        name: name of the optimizer.
        **options: arguments of Keras's Optimizer.

    Raises:
        ValueError: for patterns that are a bare string, a pattern that no path matches, bounds that exclude each other,
            and sharded variables.
    """

    def __init__(
        self,
        *,
        learning_rate: Any,
        weight_decay: float | None,
        exclude_from_weight_decay: Sequence[str] | None,
        exclude_from_adaptation: Sequence[str] | None,
        min_trust_ratio: float | None,
        max_trust_ratio: float | None,
        name: str,
        **options: Any,
    ) -> None:
        check_bounds(min_trust_ratio, max_trust_ratio)
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            name=name,
            **options,
        )
        self.exclude_from_adaptation = check_patterns(exclude_from_adaptation, "exclude_from_adaptation")
        self.min_trust_ratio, self.max_trust_ratio = min_trust_ratio, max_trust_ratio
        self._unadapted: frozenset[int] = frozenset()

    def check_variables(self, variables: list[Any], paths: list[str]) -> None:
        """Finds the variables that the exclusions match; refuses sharded variables."""
        for variable, path in zip(variables, paths, strict=True):
            # The norm of a shard is not the norm of the variable.
            if is_shard(variable):
                raise ValueError(
                    f"expected variables that are not sharded, received {path!r} in shards; "
                    "create the strategy without variable_partitioner."
                )
        super().check_variables(variables, paths)
        self._unadapted = (
            self._undecayed
            if self.exclude_from_adaptation is None
            else excluded(self.exclude_from_adaptation, paths, "exclude_from_adaptation")
        )

    def is_adapted(self, index: int) -> bool:
        """Returns whether a variable has a trust ratio."""
        return index not in self._unadapted

    def trust_ratio(self, weight: tf.Tensor, other: tf.Tensor, quotient: tf.Tensor) -> tf.Tensor:
        """Returns the quotient within the bounds, or 1 if one of the norms is 0."""
        return quotient_or_one(weight, other, bounded(quotient, self.min_trust_ratio, self.max_trust_ratio))

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the optimizer that a config of this class, or of TensorFlow Addons' LAMB, describes.

        Raises:
            ValueError: for a config of TensorFlow Addons with a decay of the learning rate.
        """
        return super().from_config(_translated(config), custom_objects)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        adaptation = self.exclude_from_adaptation
        return {
            **super().get_config(),
            "exclude_from_adaptation": None if adaptation is None else list(adaptation),
            "min_trust_ratio": self.min_trust_ratio,
            "max_trust_ratio": self.max_trust_ratio,
        }


def _translated(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config in which the option names of TensorFlow Addons are replaced by the names of this class."""
    config = dict(config)
    if "weight_decay_rate" in config:
        config["weight_decay"] = config.pop("weight_decay_rate")
    if "exclude_from_layer_adaptation" in config:
        # TensorFlow Addons treats an empty list as None.
        config["exclude_from_adaptation"] = config.pop("exclude_from_layer_adaptation") or None
    decay = config.pop("decay", 0.0)
    if decay:
        raise ValueError(
            f"expected no decay of the learning rate in a config, received decay={decay}; use a LearningRateSchedule."
        )
    return config
