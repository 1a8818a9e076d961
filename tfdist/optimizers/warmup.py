"""LinearWarmup: the learning rate grows to what is asked for, over the first steps (Goyal et al., 1706.02677)."""

from __future__ import annotations

import numbers
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras


@keras().utils.register_keras_serializable(package="tfdist")
class LinearWarmup(keras().optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A learning rate that grows linearly to another one's, and then is that other one's.

    At step k, counted from 0, of the warmup the rate is the share start + (1 - start) * (k + 1) / warmup_steps of what
    the schedule says for that step: the first step already has a rate above 0, and step `warmup_steps` - 1 has the
    whole one. The rate depends on the step alone, so that a resumed job goes on where it was.

    Args:
        learning_rate: a number, or a LearningRateSchedule; a float, or a float tensor from an int step.
        warmup_steps: how many steps it takes; 0 for none.
        start: share of the rate before the first step; with a share of 0 and `first_step_at_start` the rate of the
            first step is 0.
        first_step_at_start: whether the first step has the share `start`, and step `warmup_steps` the whole rate.
        name: of the operations.

    Raises:
        ValueError: for a negative number of steps, and a start outside 0 to 1.

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
        # Neither infinity nor what is no number has a rest of 0.
        if not whole or warmup_steps % 1 != 0 or warmup_steps < 0:
            raise ValueError(f"expected warmup_steps to be 0 or more, received {warmup_steps!r}; give a whole number.")
        if not 0 <= start <= 1:
            raise ValueError(f"expected start to be from 0 to 1, received {start}; it is a share of the learning rate.")
        if isinstance(learning_rate, numbers.Real) and not isinstance(learning_rate, bool):
            learning_rate = float(learning_rate)
        elif not isinstance(learning_rate, keras().optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"expected learning_rate to be a number or a schedule, received {learning_rate!r}; give one of them."
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
                # Schedules may be given whole numbers.
                rate = tf.cast(rate, tf.float32)
            if not self.warmup_steps:
                return rate
            done = tf.cast(step, tf.int64) + (0 if self.first_step_at_start else 1)
            share = tf.cast(tf.minimum(done, self.warmup_steps), rate.dtype) / self.warmup_steps
            return rate * (self.start + (1 - self.start) * share)

    def get_config(self) -> dict[str, Any]:
        """Returns all arguments."""
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
        """Returns the schedule of a config."""
        config = dict(config)
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras().optimizers.schedules.deserialize(config["learning_rate"])
        return cls(**config)
