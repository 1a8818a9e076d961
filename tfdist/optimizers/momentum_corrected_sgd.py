"""SGD with momentum correction (Goyal et al. 2017, 1706.02677, remark 3), for learning rates that change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.optimizers import fused
from tfdist.optimizers.decaying import DecayingOptimizer


@keras().utils.register_keras_serializable(package="tfdist")
class MomentumCorrectedSGD(DecayingOptimizer):
    """SGD whose velocity holds gradients, not steps: v = momentum * v + g, w -= learning_rate * v.

    The velocity of Keras's SGD includes the learning rate, so that the old rate still has an effect for about
    1 / (1 - momentum) steps after a change. Goyal et al. correct the velocity by the quotient of the two rates, which
    is equivalent to the formula above. With a constant learning rate, both optimizers make the same steps.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: share of the velocity that is kept, from 0 to below 1.
        nesterov: whether to use Nesterov's momentum.
        weight_decay: factor by which the variable is multiplied to give its decay, which is added to the gradient.
        exclude_from_weight_decay: regular expressions that are searched for in the paths of the variables; a variable
            that matches has no decay.
        name: name of the optimizer.
        **options: arguments of Keras's Optimizer, such as clipnorm or global_clipnorm.

    Raises:
        ValueError: for options out of range, patterns that are a bare string, and a pattern that no path matches.

    Source: Goyal et al. 2017 (1706.02677), remark 3 and equation 9.

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
            raise ValueError(f"expected momentum to be from 0 to below 1, received {momentum}.")
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            name=name,
            **options,
        )
        self.momentum, self.nesterov = float(momentum), bool(nesterov)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Adds gradient and decay to the velocity, then moves the variable by learning rate times velocity."""
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
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
        }
