"""The phases of a training, and how long each may take before the training counts as stalled."""

from __future__ import annotations

import dataclasses
import numbers

OUTSIDE = "outside"
"""The program runs, but does not train: before and after fit."""
TRACING = "tracing"
"""The first step, or a step for which TensorFlow traces or compiles anew."""
FIRST_BATCH = "first batch"
"""The first step of an epoch or of an evaluation, for which the pipeline fills its buffers."""
TRAINING = "training"
EVALUATION = "evaluation"
PREDICTION = "prediction"
CALLBACKS = "callbacks"
"""Between two steps."""
SAVING = "saving"
"""Between two epochs: callbacks run and files are written."""

STEPS = (TRAINING, EVALUATION, PREDICTION)
"""The phases whose usual duration is known."""


def is_above(value: object, least: float) -> bool:
    """Returns whether a value is a number above another one.

    Example:
        >>> is_above(2, 1), is_above("2", 1), is_above(float("nan"), 1)
        (True, False, False)
    """
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and float(value) > least


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """How long each phase may take.

    Attributes:
        factor: a step may take this many times the usual duration.
        floor_seconds: a step may always take this long.
        tracing_seconds: how long the first step may take, and any step in which TensorFlow traces a function.
        data_seconds: how long the first step of an epoch or evaluation may take.
        saving_seconds: how long callbacks may take between steps and epochs, and the program outside of fit.

    Raises:
        ValueError: if an option is not above 0, or the factor not above 1.

    Example:
        >>> limits = Limits(factor=10.0, floor_seconds=60.0)
        >>> limits.of(TRAINING, usual_seconds=0.2), limits.of(TRAINING, usual_seconds=20.0)
        (60.0, 200.0)
        >>> limits.of(SAVING), limits.of(FIRST_BATCH, usual_seconds=100.0)
        (1800.0, 1000.0)
    """

    factor: float = 10.0
    floor_seconds: float = 60.0
    tracing_seconds: float = 1800.0
    data_seconds: float = 600.0
    saving_seconds: float = 1800.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(Limits):
            value = getattr(self, field.name)
            if not is_above(value, 0):
                raise ValueError(f"expected {field.name} above 0, received {value!r}.")
        if not is_above(self.factor, 1):
            raise ValueError(f"expected factor above 1, received {self.factor!r}.")

    def of(self, phase: str, *, usual_seconds: float | None = None) -> float:
        """Returns how many seconds a phase may take.

        Args:
            phase: one of the phases of this module.
            usual_seconds: median duration of such steps; None if there were too few.
        """
        step = max(self.floor_seconds, self.factor * (usual_seconds or 0.0))
        if phase == TRACING:
            return max(step, self.tracing_seconds)
        if phase in (CALLBACKS, SAVING, OUTSIDE):
            return self.saving_seconds
        if phase == FIRST_BATCH or usual_seconds is None:
            return max(step, self.data_seconds)
        return step
