"""LARS (You et al. 2017, Large Batch Training of Convolutional Networks, 1708.03888), with MLPerf's conventions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.optimizers import fused
from tfdist.optimizers.layerwise import LayerwiseOptimizer
from tfdist.optimizers.trust_ratio import norm


@keras().utils.register_keras_serializable(package="tfdist")
class LARS(LayerwiseOptimizer):
    """LARS: SGD with momentum, and a learning rate for each variable that is scaled by the norm of the variable.

    With classic momentum, as in MLPerf, the velocity holds steps:
    `v = momentum * v + learning_rate * ratio * (g + weight_decay * w)` and `w -= v`, with the trust ratio
    `eeta * |w| / (|g| + weight_decay * |w| + epsilon)`.

    Without classic momentum the velocity holds gradients: `v = momentum * v + g + weight_decay * w` and
    `w -= learning_rate * ratio * v`, with the trust ratio `eeta * |w| / (|v| + epsilon)`. With nesterov,
    `g + weight_decay * w + momentum * v` replaces v in the step and in the ratio.

    The trust ratio is 1 if either norm is 0. For float16 and bfloat16, norms are computed in float32. A sparse gradient
    gives the same step as the dense gradient.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: share of the velocity that is kept, from 0 to below 1.
        eeta: trust coefficient. At a learning rate of 1, the norm of a step is about eeta times the norm of w.
        epsilon: number that is added to the denominator of the trust ratio.
        weight_decay: factor by which w is multiplied to give its decay, which the trust ratio scales too.
        nesterov: whether to use Nesterov's momentum.
        classic_momentum: if True, the velocity holds steps, each with the learning rate of that step; if False, it
            holds gradients.
        exclude_from_weight_decay: regular expressions that are searched for in the paths of the variables, such as
            "sequential/dense/bias"; a variable that matches has no decay.
        exclude_from_adaptation: regular expressions for variables without a trust ratio; None uses the patterns of
            exclude_from_weight_decay, and [] excludes no variable.
        min_trust_ratio: lower bound of the trust ratio, or None.
        max_trust_ratio: upper bound of the trust ratio, or None.
        name: name of the optimizer.
        **options: arguments of Keras's Optimizer, such as clipnorm, global_clipnorm or use_ema.

    Raises:
        ValueError: for options out of range, patterns that are a bare string, a pattern that no path matches, and
            sharded variables, which a variable_partitioner makes on parameter servers.

    Source: You et al. 2017 (1708.03888); the reference implementation of MLPerf for classic momentum.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers import LARS
        >>> weight = tf.Variable([3.0, 4.0])
        >>> _ = LARS(1.0, eeta=0.1).apply_gradients([(tf.constant([2.0, 0.0]), weight)])
        >>> weight.numpy().tolist()
        [2.5, 4.0]

        The norm of the weight was 5 and eeta is 0.1, so the norm of the step is 0.5.
    """

    SLOTS = ("momentum",)

    def __init__(
        self,
        learning_rate: Any = 1.0,
        *,
        momentum: float = 0.9,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        weight_decay: float | None = 0.0,
        nesterov: bool = False,
        classic_momentum: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_adaptation: Sequence[str] | None = None,
        min_trust_ratio: float | None = None,
        max_trust_ratio: float | None = None,
        name: str = "LARS",
        **options: Any,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"expected momentum to be from 0 to below 1, received {momentum}.")
        if not eeta > 0 or not epsilon >= 0:
            raise ValueError(f"expected eeta above 0 and epsilon of 0 or more, received {eeta} and {epsilon}.")
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            exclude_from_weight_decay=exclude_from_weight_decay,
            exclude_from_adaptation=exclude_from_adaptation,
            min_trust_ratio=min_trust_ratio,
            max_trust_ratio=max_trust_ratio,
            name=name,
            **options,
        )
        self.momentum, self.eeta, self.epsilon = float(momentum), float(eeta), float(epsilon)
        self.nesterov, self.classic_momentum = bool(nesterov), bool(classic_momentum)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Scales the learning rate by the trust ratio, then updates the velocity and the variable."""
        (velocity,) = slots
        rate, dtype = shared, gradient.dtype
        weight = tf.cast(tf.convert_to_tensor(variable), dtype)
        if self.classic_momentum:
            rate *= self._ratio(index, weight, gradient, decay=self.decay_of(index))
            self._classic_step(index, gradient, variable, velocity, weight, rate)
            return
        gradient = self._decayed(index, gradient, weight)
        moved = self.momentum * tf.cast(tf.convert_to_tensor(velocity), dtype) + gradient
        velocity.assign(tf.cast(moved, velocity.dtype))
        direction = gradient + self.momentum * moved if self.nesterov else moved
        rate *= self._ratio(index, weight, direction, decay=0.0)
        if fused.can_fuse(variable):
            fused.add_scaled(variable, -rate, direction)
        else:
            variable.assign(tf.cast(weight - rate * direction, variable.dtype))

    def _classic_step(
        self, index: int, gradient: tf.Tensor, variable: Any, velocity: Any, weight: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Computes v = momentum * v - rate * (g + decay * w) and w = w + v; this v is -v of the class docstring."""
        dtype, decay = gradient.dtype, self.decay_of(index)
        if not fused.can_fuse(variable):
            gradient = self._decayed(index, gradient, weight)
            moved = self.momentum * tf.cast(tf.convert_to_tensor(velocity), dtype) - rate * gradient
            velocity.assign(tf.cast(moved, velocity.dtype))
            step = self.momentum * moved - rate * gradient if self.nesterov else moved
            variable.assign(tf.cast(weight + step, variable.dtype))
            return
        done: Any = None
        if decay and self.momentum and not self.nesterov:
            # The kernel does not apply decay. Adding the decay to the velocity first saves a copy of the gradient.
            done = fused.add_scaled(velocity, -rate * (decay / self.momentum), weight)
        else:
            gradient = self._decayed(index, gradient, weight)
        with tf.control_dependencies([] if done is None else [done]):
            fused.apply_momentum(
                variable,
                velocity,
                gradient,
                rate=rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                rate_inside=True,
            )

    def _decayed(self, index: int, gradient: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        decay = self.decay_of(index)
        return gradient + decay * weight if decay else gradient

    def _ratio(self, index: int, weight: tf.Tensor, measured: tf.Tensor, *, decay: float) -> tf.Tensor:
        if not self.is_adapted(index):
            return tf.ones([], weight.dtype)
        size, length = norm(weight), norm(measured)
        # Terms that are 0 are left out: for a small variable, the time of a step is mostly the overhead of operations.
        divisor = length + decay * size if decay else length
        divisor = divisor + self.epsilon if self.epsilon else divisor
        # Squares of numbers above about 1e19 overflow float32. With an infinite norm the ratio is NaN instead of 0, so
        # that the overflow is noticed.
        quotient = tf.where(tf.math.is_finite(length), self.eeta * size / divisor, float("nan"))
        return self.trust_ratio(size, length, quotient)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "eeta": self.eeta,
            "epsilon": self.epsilon,
            "nesterov": self.nesterov,
            "classic_momentum": self.classic_momentum,
        }
