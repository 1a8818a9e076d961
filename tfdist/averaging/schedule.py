"""When replicas meet: after how many local steps, and from which step on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Meetings:
    """Decides after which steps the replicas meet.

    Args:
        every: number of steps from one meeting to the next, at least 1; or a function of the number of the step, an
            int64 scalar tensor that counts from 0, which returns this number.
        start_step: number of synchronous steps at the beginning.

    Raises:
        ValueError: if an argument is out of its range.

    Example:
        >>> from tfdist.averaging.schedule import Meetings
        >>> [Meetings(every=lambda step: 1 + step // 2).steps_at(step) for step in range(4)]
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

    def steps_at(self, step: Any) -> Any:
        """Returns the number of steps from one meeting to the next, as it is at a step.

        Args:
            step: number of the step, counted from 0; a number or an integer tensor.
        """
        return self.every(step) if callable(self.every) else self.every
