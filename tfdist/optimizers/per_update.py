"""PerUpdate: a schedule of updates for an optimizer that counts batches, because it accumulates their gradients."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras


@keras().utils.register_keras_serializable(package="tfdist")
class PerUpdate(keras().optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Follows a schedule by one step for each update. Keras's `gradient_accumulation_steps` counts batches instead.

    Args:
        schedule: a LearningRateSchedule of the updates.
        batches: number of batches of an update, at least 1.

    Raises:
        ValueError: if there is not at least one batch.

    Example:
        >>> from tfdist.optimizers.per_update import PerUpdate
        >>> from tfdist.optimizers import LinearWarmup
        >>> [round(float(PerUpdate(LinearWarmup(1.0, 4), 2)(batch)), 2) for batch in range(6)]
        [0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    """

    def __init__(self, schedule: Any, batches: int) -> None:
        super().__init__()
        if batches < 1:
            raise ValueError(f"expected gradient_accumulation_steps to be 1 or more, received {batches}.")
        self.schedule = schedule
        self.batches = int(batches)

    def __call__(self, step: Any) -> tf.Tensor:
        """Returns the learning rate of a batch, counted from 0."""
        return self.schedule(tf.cast(step, tf.int64) // self.batches)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {"schedule": keras().optimizers.schedules.serialize(self.schedule), "batches": self.batches}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PerUpdate:
        """Returns the schedule that a config describes."""
        schedule = config["schedule"]
        if isinstance(schedule, dict):
            schedule = keras().optimizers.schedules.deserialize(schedule)
        return cls(schedule, config["batches"])
