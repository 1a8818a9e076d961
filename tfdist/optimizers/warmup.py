"""LinearWarmup: a learning rate that ramps up over the first steps (Goyal et al. 2017, 1706.02677, section 2.2)."""

from __future__ import annotations

import numbers
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras


@keras().utils.register_keras_serializable(package="tfdist")
class LinearWarmup(keras().optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Ramps linearly to the wrapped rate or schedule, then follows it.

    At step k of the warmup, counted from 0, the rate is the wrapped rate of that step times start + (1 - start) *
    (k + 1) / warmup_steps. The first step thus has a rate above 0, and step warmup_steps - 1 has the full rate. The
    rate depends on the step alone, so that a resumed training continues the ramp.

    Args:
        learning_rate: the wrapped rate: a number or a LearningRateSchedule.
        warmup_steps: number of steps of the ramp; 0 for no warmup.
        start: share of the wrapped rate at which the ramp starts, from 0 to 1.
        first_step_at_start: if True, the share of the first step is `start`, which may be 0, and step `warmup_steps` is
            the first step with the full rate.
        name: name of the operations.

    Raises:
        ValueError: for warmup_steps that is negative or not whole, a start outside 0 to 1, and a learning rate that is
            neither a number nor a LearningRateSchedule.

    Source: Goyal et al. 2017 (1706.02677), section 2.2.

    Example:
        >>> from tfdist.optimizers import LinearWarmup
        >>> [round(float(LinearWarmup(0.8, warmup_steps=4)(step)), 3) for step in (0, 1, 3, 4, 100)]
        [0.2, 0.4, 0.8, 0.8, 0.8]
    """

    def __init__(
        self,
        learning_rate: Any,
        warmup_steps: int,
        *,
        start: float = 0.0,
        first_step_at_start: bool = False,
        name: str = "LinearWarmup",
    ) -> None:
        super().__init__()
        whole = isinstance(warmup_steps, numbers.Real) and not isinstance(warmup_steps, bool)
        # The remainder of infinity and of NaN is not 0.
        if not whole or warmup_steps % 1 != 0 or warmup_steps < 0:
            raise ValueError(f"expected warmup_steps to be a whole number, 0 or more, received {warmup_steps!r}.")
        if not 0 <= start <= 1:
            raise ValueError(f"expected start to be a share of the learning rate, from 0 to 1, received {start}.")
        if isinstance(learning_rate, numbers.Real) and not isinstance(learning_rate, bool):
            learning_rate = float(learning_rate)
        elif not isinstance(learning_rate, keras().optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"expected learning_rate to be a number or a LearningRateSchedule, received {learning_rate!r}."
            )
        self.learning_rate = learning_rate
        self.warmup_steps = int(warmup_steps)
        self.start = float(start)
        self.first_step_at_start = bool(first_step_at_start)
        self.name = name

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of a step, counted from 0."""
        with tf.name_scope(self.name):
            rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
            rate = tf.convert_to_tensor(rate)
            if not rate.dtype.is_floating:
                # A schedule of whole numbers, such as PiecewiseConstantDecay([10], [1, 2]), returns integers.
                rate = tf.cast(rate, tf.float32)
            if not self.warmup_steps:
                return rate
            done = tf.cast(step, tf.int64) + (0 if self.first_step_at_start else 1)
            share = tf.cast(tf.minimum(done, self.warmup_steps), rate.dtype) / self.warmup_steps
            return rate * (self.start + (1 - self.start) * share)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        rate = self.learning_rate
        return {
            "learning_rate": keras().optimizers.schedules.serialize(rate) if callable(rate) else rate,
            "warmup_steps": self.warmup_steps,
            "start": self.start,
            "first_step_at_start": self.first_step_at_start,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LinearWarmup:
        """Returns the schedule that a config describes."""
        config = dict(config)
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras().optimizers.schedules.deserialize(config["learning_rate"])
        return cls(**config)
