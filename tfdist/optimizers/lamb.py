"""LAMB (You et al. 2019, Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 1904.00962)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.optimizers import fused
from tfdist.optimizers.layerwise import LayerwiseOptimizer
from tfdist.optimizers.trust_ratio import norm


@keras().utils.register_keras_serializable(package="tfdist")
class LAMB(LayerwiseOptimizer):
    """LAMB: Adam with weight decay, and a step for each variable that is scaled by the norm of the variable.

    The update is `w -= learning_rate * ratio * u` with `u = m / (sqrt(v) + epsilon) + weight_decay * w`. The trust
    ratio is `|w| / |u|`, or 1 if either norm is 0. For float16 and bfloat16, norms and moments are computed in float32.
    A sparse gradient gives the same step as the dense gradient.

    Args:
        learning_rate: a number or a LearningRateSchedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: number that is added to the square root of the second moment.
        weight_decay: factor of w in u.
        bias_correction: whether the moments are divided by 1 - beta ** step.
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

    Source: You et al. 2019 (1904.00962), algorithm 2.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.optimizers import LAMB
        >>> weight = tf.Variable([3.0, 4.0])
        >>> _ = LAMB(0.1).apply_gradients([(tf.constant([1.0, 1.0]), weight)])
        >>> [round(float(value), 3) for value in weight.numpy()]
        [2.646, 3.646]

        The norm of the weight was 5 and the rate is 0.1, so the norm of the step is 0.5.
    """

    SLOTS = ("momentum", "velocity")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        *,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float | None = 0.0,
        bias_correction: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_adaptation: Sequence[str] | None = None,
        min_trust_ratio: float | None = None,
        max_trust_ratio: float | None = None,
        name: str = "LAMB",
        **options: Any,
    ) -> None:
        for option, beta in (("beta_1", beta_1), ("beta_2", beta_2)):
            # With a beta that float32 rounds to 1, the moment would never change.
            if not 0 <= np.float32(beta) < 1:
                raise ValueError(f"expected {option} to be from 0 to below 1, received {beta}.")
        # As long as an element has had no gradient, its update is divided by epsilon alone.
        if not epsilon > 0:
            raise ValueError(f"expected epsilon above 0, received {epsilon}.")
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
        self.beta_1, self.beta_2, self.epsilon = float(beta_1), float(beta_2), float(epsilon)
        self.bias_correction = bool(bias_correction)

    def prepare_step(self, dtype: tf.DType, learning_rate: Any) -> Any:
        """Returns the learning rate, the scale of Adam's direction, and epsilon."""
        return super().prepare_step(dtype, learning_rate), *self._corrections(dtype)

    def update_variable(self, index: int, gradient: tf.Tensor, variable: Any, slots: list[Any], shared: Any) -> None:
        """Updates the moments, then subtracts learning_rate * ratio * u from the variable."""
        first, second = slots
        rate, scale, epsilon = shared
        dtype = gradient.dtype
        # Read now, because the fused kernels below change the variable in place.
        weight = tf.cast(tf.convert_to_tensor(variable), dtype)
        decay = tf.constant(self.decay_of(index), dtype)
        if fused.can_fuse(variable):
            with tf.device(variable.device):
                # `step` is -u.
                step = fused.adam_direction(
                    -decay * weight,
                    first,
                    second,
                    gradient,
                    beta_1=self.beta_1,
                    beta_2=self.beta_2,
                    scale=scale,
                    epsilon=epsilon,
                )
                fused.add_scaled(variable, rate * self._ratio(index, weight, step), step)
            return
        m, v = (tf.cast(tf.convert_to_tensor(slot), dtype) for slot in slots)
        m += (gradient - m) * _one_minus(self.beta_1, dtype)
        v += (tf.square(gradient) - v) * _one_minus(self.beta_2, dtype)
        first.assign(tf.cast(m, first.dtype))
        second.assign(tf.cast(v, second.dtype))
        step = -decay * weight - scale * m / (tf.sqrt(v) + epsilon)
        ratio = self._ratio(index, weight, step)
        variable.assign(tf.cast(weight + rate * ratio * step, variable.dtype))

    def _ratio(self, index: int, weight: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        if not self.is_adapted(index):
            return tf.ones([], weight.dtype)
        size, length = norm(weight), norm(step)
        return self.trust_ratio(size, length, size / length)

    def _corrections(self, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the factor of Adam's direction and the epsilon that together correct the bias of both moments.

        In the first steps, 1 - beta ** step would lose most of its digits in float32; it is computed in float64. The
        betas are first rounded to the dtype of the moments, so that the weights of the gradients in a moment add up to
        1 - beta ** step.
        """
        wide = tf.float64
        if self.bias_correction:
            step = tf.cast(tf.convert_to_tensor(self.iterations), wide) + 1
            betas = [tf.constant(_rounded(beta, dtype), wide) for beta in (self.beta_1, self.beta_2)]
            first, second = (1 - tf.pow(beta, step) for beta in betas)
        else:
            first, second = (tf.constant((1 - _rounded(b, dtype)) / (1 - b), wide) for b in (self.beta_1, self.beta_2))
        root = tf.sqrt(second)
        return tf.cast(root / first, dtype), tf.cast(self.epsilon * root, dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
        }


def _rounded(beta: float, dtype: tf.DType) -> float:
    return float(np.asarray(beta, dtype.as_numpy_dtype))


def _one_minus(beta: float, dtype: tf.DType) -> tf.Tensor:
    return tf.constant(1 - _rounded(beta, dtype), dtype)
