"""Staleness: what parameter servers do with gradients of old weights, and the counts of what they did.

A worker reads the weights, computes gradients and sends them. Meanwhile other workers may have updated the weights. The
number of these updates is the staleness of the gradients, tau.

Source: learning rates divided by the staleness, and updates from n gradients (n-softsync), are of Zhang et al.,
"Staleness-aware Async-SGD for Distributed Deep Learning", https://arxiv.org/abs/1511.05950. The bound is the stale
synchronous parallel model of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
Server", NIPS 2013. Backup workers are of Chen et al., "Revisiting Distributed Synchronous SGD",
https://arxiv.org/abs/1604.00981.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

INVERSE = "1/tau"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Staleness:
    """What parameter servers do with gradients of old weights; an option of `create_strategy("parameter_server")`.

    The staleness tau of a gradient is the number of updates that the parameter servers made after the worker began to
    read the weights, until the gradient is used.

    Args:
        scale: factor of the learning rate of each gradient. "1/tau" is 1 for tau = 0 and 1, and 1/tau above. A function
            receives tau as a scalar int64 tensor and returns a scalar factor. With None the learning rate is unchanged.
        drop_above: gradients with tau > drop_above are dropped, and counted apart; None drops none.
        bound: a worker does not begin a step while it has finished more than `bound` steps more than the slowest live
            worker; None lets every worker go on.
        soft_sync: number of gradients of which the mean makes one update; None is 1, so that each gradient makes an
            update. With a learning rate scaled by staleness, the gradients of a mean are weighted by their factors.

    Raises:
        ValueError: for a value that is not one of these.

    Example:
        >>> from tfdist.averaging import Staleness
        >>> Staleness(scale=None, drop_above=8, soft_sync=3)
        Staleness(scale=None, drop_above=8, bound=None, soft_sync=3)
        >>> Staleness(bound=-1)
        Traceback (most recent call last):
        ...
        ValueError: expected staleness.bound to be a whole number of at least 0, or None, received -1.
    """

    scale: str | Callable[[Any], Any] | None = INVERSE
    drop_above: int | None = None
    bound: int | None = None
    soft_sync: int | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and self.scale != INVERSE and not callable(self.scale):
            raise ValueError(
                f"expected staleness.scale to be {INVERSE!r}, a function of tau, or None, received {self.scale!r}."
            )
        for name, least in (("drop_above", 0), ("bound", 0), ("soft_sync", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ValueError(
                    f"expected staleness.{name} to be a whole number of at least {least}, or None, received {value!r}."
                )

    @property
    def gradients_per_update(self) -> int:
        """The number of gradients of which the mean makes one update."""
        return self.soft_sync or 1


def check_staleness(staleness: Any, *, num_workers: int) -> None:
    """Raises ValueError unless a cluster of this size can honour the options.

    Args:
        staleness: the option of the strategy, or None.
        num_workers: the number of workers.

    Example:
        >>> from tfdist.averaging.staleness import Staleness, check_staleness
        >>> check_staleness(Staleness(soft_sync=4), num_workers=3)
        Traceback (most recent call last):
        ...
        ValueError: expected staleness.soft_sync to be at most the number of workers, 3, received 4.
    """
    if staleness is None:
        return
    if not isinstance(staleness, Staleness):
        raise ValueError(
            f"expected staleness to be a tfdist.averaging.Staleness or None, received {type(staleness).__name__}."
        )
    if staleness.gradients_per_update > num_workers:
        raise ValueError(
            f"expected staleness.soft_sync to be at most the number of workers, {num_workers}, received "
            f"{staleness.soft_sync}."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StalenessCounts:
    """What parameter servers did with the gradients that arrived until now.

    Attributes:
        updates: number of updates of the weights, which is their version.
        applied: number of gradients in these updates.
        dropped: number of gradients that were dropped because of their staleness.
        waiting: number of gradients that wait for others, with soft_sync.
        histogram: histogram[tau] is the number of gradients that arrived with this staleness, dropped ones included;
            the last entry counts all gradients with this staleness or a larger one.

    Example:
        >>> from tfdist.averaging import StalenessCounts
        >>> counts = StalenessCounts(updates=2, applied=2, dropped=1, waiting=0, histogram=(1, 1, 0, 1))
        >>> counts.gradients, counts.largest, round(counts.mean, 2)
        (3, 3, 1.33)
    """

    updates: int
    applied: int
    dropped: int
    waiting: int
    histogram: tuple[int, ...]

    @property
    def gradients(self) -> int:
        """The number of gradients that arrived."""
        return sum(self.histogram)

    @property
    def mean(self) -> float:
        """The mean staleness, in which one beyond the histogram counts as its end; 0.0 if no gradient has arrived."""
        total = sum(tau * count for tau, count in enumerate(self.histogram))
        return total / self.gradients if self.gradients else 0.0

    @property
    def largest(self) -> int:
        """The largest staleness, at most the end of the histogram; 0 if no gradient has arrived."""
        return max((tau for tau, count in enumerate(self.histogram) if count), default=0)

    def since(self, earlier: StalenessCounts) -> StalenessCounts:
        """Returns what was counted after an earlier time; `waiting` is the number that waits now."""
        pairs = zip(self.histogram, earlier.histogram, strict=True)
        return StalenessCounts(
            updates=self.updates - earlier.updates,
            applied=self.applied - earlier.applied,
            dropped=self.dropped - earlier.dropped,
            waiting=self.waiting,
            histogram=tuple(now - before for now, before in pairs),
        )

    def line(self) -> str:
        """Returns one line for the log.

        Example:
            >>> from tfdist.averaging import StalenessCounts
            >>> StalenessCounts(updates=2, applied=2, dropped=1, waiting=0, histogram=(1, 1, 0, 1)).line()
            'staleness: 3 gradients, 2 applied in 2 updates, 1 dropped; mean 1.33, largest 3; 0: 1, 1: 1, 3: 1'
        """
        last = len(self.histogram) - 1
        bins = [f"{tau}{'+' if tau == last and tau >= 64 else ''}: {n}" for tau, n in enumerate(self.histogram) if n]
        waiting = f", {self.waiting} waiting" if self.waiting else ""
        return (
            f"staleness: {self.gradients} gradients, {self.applied} applied in {self.updates} updates, "
            f"{self.dropped} dropped{waiting}; mean {self.mean:.2f}, largest {self.largest}; {', '.join(bins)}"
        )
