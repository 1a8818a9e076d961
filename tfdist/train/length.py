"""How long a training is. Pure functions of its flags."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Length:
    """The length of a training.

    Attributes:
        steps_per_epoch: number of steps of an epoch.
        steps: number of steps of all epochs, of which the last one may be shorter.

    Example:
        >>> from tfdist.train.length import Length
        >>> length = Length(steps_per_epoch=22, steps=50)
        >>> length.epochs, length.ends_within_an_epoch
        (3, True)
    """

    steps_per_epoch: int
    steps: int

    @property
    def epochs(self) -> int:
        """Number of epochs; the last one may be shorter."""
        return math.ceil(self.steps / self.steps_per_epoch)

    @property
    def ends_within_an_epoch(self) -> bool:
        """Whether the last epoch is shorter."""
        return self.steps % self.steps_per_epoch > 0


def length_of(*, steps_per_epoch: int, epochs: int, steps: int | None) -> Length:
    """Returns the length of a training.

    Args:
        steps_per_epoch: number of steps of an epoch.
        epochs: number of epochs, unless `steps` is given.
        steps: number of steps, or None.

    Example:
        >>> from tfdist.train.length import length_of
        >>> length_of(steps_per_epoch=22, epochs=20, steps=None).steps
        440
    """
    return Length(steps_per_epoch=steps_per_epoch, steps=epochs * steps_per_epoch if steps is None else steps)


def check_whole_epochs(length: Length) -> None:
    """Raises an error if the last epoch is shorter; for the parameter server strategy, whose steps end out of order.

    Args:
        length: length of the training.

    Raises:
        ValueError: if the last epoch is shorter.

    Example:
        >>> from tfdist.train.length import Length, check_whole_epochs
        >>> check_whole_epochs(Length(steps_per_epoch=22, steps=50))
        Traceback (most recent call last):
        ...
        ValueError: expected --steps as a multiple of the 22 steps of an epoch with parameter servers, received 50; ...
    """
    if length.ends_within_an_epoch:
        last, size = length.steps, length.steps_per_epoch
        raise ValueError(
            f"expected --steps as a multiple of the {size} steps of an epoch with parameter servers, received {last}; "
            f"choose {last - last % size + size}, or set --steps_per_epoch."
        )


def check_end(*, ended_at: int, stopped: bool, length: Length, directory: str) -> None:
    """Raises an error if a training is to be longer than one that has ended within an epoch.

    Args:
        ended_at: number of steps of the training that has ended.
        stopped: whether it ended before the last of its epochs was complete.
        length: length of the training that begins.
        directory: directory of the snapshots.

    Raises:
        ValueError: if the steps that are missing cannot be made.

    Example:
        >>> from tfdist.train.length import Length, check_end
        >>> length = Length(steps_per_epoch=22, steps=60)
        >>> check_end(ended_at=44, stopped=False, length=length, directory="run/snapshots")
        >>> check_end(ended_at=50, stopped=True, length=length, directory="run/snapshots")
        Traceback (most recent call last):
        ...
        ValueError: expected a training that can go on to step 60, received one in 'run/snapshots' that ended with ...
    """
    within_an_epoch = ended_at % length.steps_per_epoch > 0
    if stopped and within_an_epoch and length.steps > ended_at:
        raise ValueError(
            f"expected a training that can go on to step {length.steps}, received one in {directory!r} that ended with "
            f"step {ended_at}, within an epoch; choose another --model_dir, or a length of at most {ended_at} steps."
        )
