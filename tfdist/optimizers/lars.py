"""LARS (You et al., Large Batch Training of Convolutional Networks, 1708.03888), with the conventions of MLPerf."""

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
    """SGD with momentum whose rate is scaled for each variable by the variable's length over its gradient's.

    Classic momentum, as in MLPerf: ratio = eeta * |w| / (|g| + weight_decay * |w| + epsilon), which is 1 if |w| or |g|
    is 0; v = momentum * v + learning_rate * ratio * (g + weight_decay * w); w = w - v. Without classic momentum rate
    and ratio are outside: v = momentum * v + g + weight_decay * w, ratio = eeta * |w| / (|v| + epsilon), w = w -
    learning_rate * ratio * v, where nesterov takes g + momentum * v for v. Norms are in float32 for smaller floats. A
    sparse gradient gives the step of the dense one.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        momentum: from 0 to below 1.
        eeta: trust coefficient, how much of its length a variable moves at a rate of 1.
        epsilon: added to the denominator of the ratio.
        weight_decay: times the variable, inside the trust ratio.
        nesterov: whether the gradient is looked at ahead.
        classic_momentum: whether the velocity holds steps, with the rate they had, or gradients.
        exclude_from_weight_decay: regular expressions over the paths of variables, such as "sequential/dense/bias";
            those in which one is found have no decay.
        exclude_from_adaptation: the same for the trust ratio; None takes those of exclude_from_weight_decay, []
            excludes nothing.
        min_trust_ratio: lower bound, None for none.
        max_trust_ratio: upper bound, None for none.
        name: of the optimizer.
        **options: of Keras's Optimizer, such as clipnorm, global_clipnorm or use_ema.

    Raises:
        ValueError: for options out of range, patterns that are a bare string or are found in no path, and variables in
            shards, as parameter servers with a variable_partitioner have them.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers import LARS
        >>> weight = tf.Variable([3.0, 4.0])
        >>> _ = LARS(1.0, eeta=0.1).apply_gradients([(tf.constant([2.0, 0.0]), weight)])
        >>> weight.numpy().tolist()  # a tenth of its length, 5
        [2.5, 4.0]
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
            raise ValueError(f"expected momentum to be from 0 to below 1, received {momentum}; give another.")
        if not eeta > 0 or not epsilon >= 0:
            raise ValueError(
                f"expected eeta above 0 and epsilon of 0 or more, received {eeta} and {epsilon}; give others."
            )
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
        """One step: trust ratio, velocity, assignment."""
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
        """V = momentum * v - rate * (g + decay * w), w = w + v."""
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
            # The kernel knows no decay: put into the velocity before, it needs no gradient of its own.
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
        # What is nothing costs nothing: a small variable's step is mostly what its operations cost.
        divisor = length + decay * size if decay else length
        divisor = divisor + self.epsilon if self.epsilon else divisor
        # The squares of 1e20 are beyond float32: an infinite norm makes no number here, not a step of 0.
        quotient = tf.where(tf.math.is_finite(length), self.eeta * size / divisor, float("nan"))
        return self.trust_ratio(size, length, quotient)

    def get_config(self) -> dict[str, Any]:
        """Returns all arguments."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "eeta": self.eeta,
            "epsilon": self.epsilon,
            "nesterov": self.nesterov,
            "classic_momentum": self.classic_momentum,
        }
