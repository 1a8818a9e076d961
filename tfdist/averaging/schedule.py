"""When replicas meet: after how many local steps, and from which step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meetings:
    """Decides after which steps the replicas meet.

    Args:
        every: number of steps from one meeting to the next, at least 1; or a function of the number of the step, an
            int64 scalar tensor that counts from 0, which returns this number, a whole one. A step at which it returns
            less than 1 fails with InvalidArgumentError.
        start_step: number of synchronous steps at the beginning.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> from tfdist.averaging.schedule import Meetings
        >>> [int(Meetings(every=lambda step: 1 + step // 2).steps_at(step)) for step in range(4)]
        [1, 1, 2, 2]
    """

    every: int | Callable[[Any], Any]
    start_step: int = 0

    def __post_init__(self) -> None:
        is_count = isinstance(self.every, int) and not isinstance(self.every, bool) and self.every >= 1
        if not is_count and not callable(self.every):
            raise ValueError(
                "expected every to be a whole number, at least 1, or a function of the number of the step, received "
                f"{self.every!r}."
            )
        if isinstance(self.start_step, bool) or not isinstance(self.start_step, int) or self.start_step < 0:
            raise ValueError(f"expected start_step to be a whole number, at least 0, received {self.start_step!r}.")

    @property
    def is_every_step(self) -> bool:
        """Whether the replicas meet after every step."""
        return self.every == 1

    def steps_at(self, step: Any) -> tf.Tensor:
        """Returns the number of steps from one meeting to the next, as it is at a step: an int64 scalar.

        Args:
            step: number of the step, counted from 0; a number or an integer tensor.

        Raises:
            ValueError: if the function `every` returns no whole number.
        """
        if not callable(self.every):
            return tf.constant(self.every, tf.int64)
        steps = tf.convert_to_tensor(self.every(tf.cast(step, tf.int64)))
        if not steps.dtype.is_integer or steps.shape.rank not in (0, None):
            raise ValueError(
                f"expected every to return a whole number, received {steps.dtype.name} of shape {steps.shape}; "
                "for example, cast it with tf.cast(..., tf.int64)."
            )
        steps = tf.cast(steps, tf.int64)
        # What it returns for the synchronous steps at the beginning is not used.
        used = tf.where(tf.cast(step, tf.int64) < self.start_step, tf.ones([], tf.int64), steps)
        check = tf.debugging.assert_positive(
            used, "expected every to return at least 1, received less; make it return a larger number."
        )
        with tf.control_dependencies([check]):
            return tf.identity(steps)
