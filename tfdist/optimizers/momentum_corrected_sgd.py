"""SGD with momentum that a changing learning rate does not disturb (Goyal et al., 1706.02677, remark 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.optimizers import fused
from tfdist.optimizers.decaying import DecayingOptimizer


@keras().utils.register_keras_serializable(package="tfdist")
class MomentumCorrectedSGD(DecayingOptimizer):
    """SGD whose momentum holds gradients, not steps: v = momentum * v + g, w = w - rate * v.

    Keras's SGD keeps the learning rate in its velocity, so that after a change the old rate goes on for 1 / (1 -
    momentum) steps; Goyal et al. correct it by the quotient of the rates, which is this. With a constant rate both are
    the same.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: from 0 to below 1.
        nesterov: whether the gradient is looked at ahead.
        weight_decay: times the variable, added to its gradient.
        exclude_from_weight_decay: regular expressions; variables in whose path one is found have no decay.
        name: of the optimizer.
        **options: of Keras's Optimizer, such as clipnorm or global_clipnorm.

    Raises:
        ValueError: for a momentum out of range, and for patterns as in LAMB.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers import MomentumCorrectedSGD
        >>> weight = tf.Variable([1.0])
        >>> _ = MomentumCorrectedSGD(0.5).apply_gradients([(tf.constant([1.0]), weight)])
        >>> weight.numpy().tolist()
        [0.5]
    """

    SLOTS = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 0.01,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float | None = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "MomentumCorrectedSGD",
        **options: Any,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"expected momentum to be from 0 to below 1, received {momentum}; give another.")
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            name=name,
            **options,
        )
        self.momentum, self.nesterov = float(momentum), bool(nesterov)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Adds gradient and decay to the velocity, then moves by rate times velocity."""
        (velocity,) = slots
        rate, dtype = shared, gradient.dtype
        weight = tf.cast(tf.convert_to_tensor(variable), dtype)
        decay = self.decay_of(index)
        if decay:
            gradient += decay * weight
        if fused.can_fuse(variable):
            fused.apply_momentum(
                variable,
                velocity,
                gradient,
                rate=rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                rate_inside=False,
            )
            return
        moved = self.momentum * tf.cast(tf.convert_to_tensor(velocity), dtype) + gradient
        velocity.assign(tf.cast(moved, velocity.dtype))
        direction = gradient + self.momentum * moved if self.nesterov else moved
        variable.assign(tf.cast(weight - rate * direction, variable.dtype))

    def get_config(self) -> dict[str, Any]:
        """Returns all arguments."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }
