"""WatchOptions: when a training counts as stalled, and when a stalled job ends."""

from __future__ import annotations

import dataclasses

from tfdist.watch.phases import Limits, is_above


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchOptions(Limits):
    """How long each phase of a training may take, and how long a stall may last.

    Attributes:
        factor: a step may take this many times the usual duration.
        floor_seconds: a step may always take this long.
        tracing_seconds: how long the first step may take, and any step in which TensorFlow traces a function.
        data_seconds: how long the first step of an epoch or evaluation may take.
        saving_seconds: how long callbacks may take between steps and epochs, and the program outside of fit.
        deadline_seconds: how long a stall may last, after it was reported, before the job ends; None for ever.
        straggler_factor: a worker that takes this many times as long for a step as the others is named.

    Raises:
        ValueError: if an option is not above 0, or a factor not above 1.

    Example:
        >>> from tfdist.watch import WatchOptions
        >>> WatchOptions(floor_seconds=30.0).deadline_seconds
        300.0
        >>> WatchOptions(straggler_factor=1.0)
        Traceback (most recent call last):
        ...
        ValueError: expected straggler_factor above 1, received 1.0.
    """

    deadline_seconds: float | None = 300.0
    straggler_factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.deadline_seconds is not None and not is_above(self.deadline_seconds, 0):
            raise ValueError(f"expected deadline_seconds above 0 or None, received {self.deadline_seconds!r}.")
        if not is_above(self.straggler_factor, 1):
            raise ValueError(f"expected straggler_factor above 1, received {self.straggler_factor!r}.")


def given_options(options: WatchOptions | None) -> WatchOptions:
    """Returns the options that were given, or those of the defaults.

    Args:
        options: the argument of the user.

    Raises:
        ValueError: if they are something else.

    Example:
        >>> given_options(None).factor
        10.0
    """
    if options is not None and not isinstance(options, WatchOptions):
        raise ValueError(f"expected options to be a tfdist.watch.WatchOptions, received {options!r}.")
    return options or WatchOptions()
