"""Chooses the snapshot from which all workers go on. This file is independent of TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfdist.checkpoint.part import Part

# An offer is described by so many numbers.
_WIDTH = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Offer:
    """A part in the shared memory of a worker's host.

    Attributes:
        step: its step.
        timeline: number of the start of the program that has made the part. Two starts may make different parts of the
            same step, on different numbers of workers for example.
        replicas: number of replicas of the training that has made the part.
        is_whole: whether the part has the values of all replicas, so that any worker can use it.
        is_finished: whether the training ended with the part. What ends a training may change its weights, so that the
            part differs from another one of the same step.
    """

    step: int
    timeline: int = 0
    replicas: int = 1
    is_whole: bool = True
    is_finished: bool = False


def offer_of(part: Part) -> Offer:
    """Returns what says where a part comes from, and who can use it.

    Args:
        part: a part that Snapshots has kept.
    """
    names = ("timeline", "replicas", "is_whole", "is_finished")
    return Offer(step=part.step, **{name: part.notes[name] for name in names})


def numbers_of(offers: Sequence[Offer], *, most: int) -> list[int]:
    """Returns whole numbers that describe offers, so that workers can exchange them.

    Args:
        offers: the offers.
        most: largest number of offers; as many numbers are returned in any case.

    Example:
        >>> from tfdist.checkpoint.choice import Offer, numbers_of, offers_in
        >>> numbers_of([Offer(step=20)], most=2)
        [20, 0, 1, 1, 0, -1, -1, -1, -1, -1]
        >>> offers_in([20, 0, 1, 1, 0, -1, -1, -1, -1, -1])
        [Offer(step=20, timeline=0, replicas=1, is_whole=True, is_finished=False)]
    """
    found = [int(number) for offer in offers for number in dataclasses.astuple(offer)]
    return found + [-1] * (most * _WIDTH - len(found))


def offers_in(numbers: Sequence[int]) -> list[Offer]:
    """Returns the offers that numbers_of has described.

    Args:
        numbers: the numbers.
    """
    found = [numbers[start : start + _WIDTH] for start in range(0, len(numbers), _WIDTH)]
    return [
        Offer(step=step, timeline=timeline, replicas=replicas, is_whole=bool(is_whole), is_finished=bool(is_finished))
        for step, timeline, replicas, is_whole, is_finished in found
        if step >= 0
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """The snapshot from which all workers go on.

    Attributes:
        step: its step.
        is_finished: whether the training ended with it.
        timeline: number of the start of the program that has made it; None for a snapshot on disk.
        source: the worker that gives its part to the workers that have none; None if none needs it.
    """

    step: int
    is_finished: bool = False
    timeline: int | None = None
    source: int | None = None

    @property
    def age(self) -> tuple[int, bool]:
        """What is larger for a newer snapshot."""
        return self.step, self.is_finished

    @property
    def in_memory(self) -> bool:
        """Whether the snapshot is in shared memory, else on disk."""
        return self.timeline is not None


def choose(in_memory: Sequence[Sequence[Offer]], on_disk: Choice | None, *, replicas: int) -> Choice | None:
    """Returns the newest snapshot that all workers can have; None if there is none.

    Args:
        in_memory: for each worker, the parts in the shared memory of its host.
        on_disk: the newest complete snapshot on disk, or None.
        replicas: number of replicas of the training that goes on.

    Example:
        >>> from tfdist.checkpoint.choice import Choice, Offer, choose
        >>> choose([[Offer(step=20), Offer(step=10)], [Offer(step=10)]], Choice(step=5), replicas=1)
        Choice(step=20, is_finished=False, timeline=0, source=0)
        >>> partial = Offer(step=20, replicas=2, is_whole=False)
        >>> choose([[partial], []], Choice(step=5), replicas=2)
        Choice(step=5, is_finished=False, timeline=None, source=None)
    """
    holders: dict[tuple[int, bool, int], dict[int, Offer]] = {}
    for worker, offers in enumerate(in_memory):
        for offer in offers:
            holders.setdefault((offer.step, offer.is_finished, offer.timeline), {})[worker] = offer
    usable = []
    for (step, is_finished, timeline), found in holders.items():
        is_everywhere = len(found) == len(in_memory)
        same_replicas = all(offer.replicas == replicas for offer in found.values())
        if (is_everywhere and same_replicas) or all(offer.is_whole for offer in found.values()):
            source = None if is_everywhere else min(found)
            choice = Choice(step=step, is_finished=is_finished, timeline=timeline, source=source)
            usable.append(((choice.age, len(found), timeline), choice))
    best = max(usable, key=lambda pair: pair[0])[1] if usable else None
    if on_disk is not None and (best is None or on_disk.age > best.age):
        return on_disk
    return best
