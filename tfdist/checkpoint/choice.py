"""Chooses the snapshot from which all workers go on. This file is independent of TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Choice:
    """The snapshot from which all workers go on.

    Attributes:
        step: its step.
        in_memory: whether it is in the shared memory of every worker's host, else on disk.
    """

    step: int
    in_memory: bool


def choose(in_memory: Sequence[Sequence[int]], on_disk: int | None) -> Choice | None:
    """Returns the newest snapshot that all workers can have; None if there is none.

    Args:
        in_memory: for each worker, the steps of the parts in the shared memory of its host.
        on_disk: step of the newest complete snapshot on disk, or None.

    Example:
        >>> from tfdist.checkpoint.choice import choose
        >>> choose([[20, 10], [10]], 5)
        Choice(step=10, in_memory=True)
        >>> choose([[20, 10], []], 5)
        Choice(step=5, in_memory=False)
    """
    common = set.intersection(*(set(steps) for steps in in_memory))
    step = max(common, default=-1)
    if on_disk is not None and on_disk > step:
        return Choice(on_disk, in_memory=False)
    return Choice(step, in_memory=True) if common else None
