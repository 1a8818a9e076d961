"""What has arrived at a parameter server: the log of `asynchronous`, and counts made from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tfdist.averaging.simulate.optimizers import Slots
from tfdist.averaging.simulate.stacked import Arrays


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """Gradients that a worker has pushed.

    Args:
        worker: the worker.
        step: the number of earlier pushes of the worker.
        began: when the worker pulled, in seconds; the number of the event in a scripted order.
        second: when the gradients arrived, likewise.
        pulled: the version that the worker pulled.
        version: the version when they arrived, before the update that they may complete.
        factor: the factor of the learning rate; 0 if they were dropped.
        dropped: whether the server dropped them.

    Example:
        >>> arrival = Arrival(worker=0, step=0, began=0, second=1, pulled=3, version=5, factor=0.5, dropped=False)
        >>> arrival.staleness
        2
    """

    worker: int
    step: int
    began: float
    second: float
    pulled: int
    version: int
    factor: float
    dropped: bool

    @property
    def staleness(self) -> int:
        """The number of updates between the pull and the push."""
        return self.version - self.pulled


@dataclass(frozen=True)
class AsynchronousResult:
    """The server after all pushes.

    Args:
        weights: the weights.
        slots: the slots of the optimizer.
        version: the number of updates.
        pending: the number of gradients that wait for others to complete an update with soft_sync.
        log: all pushes, in their order.

    Example:
        >>> AsynchronousResult([], {}, 0, 0, ()).histogram()
        {}
    """

    weights: Arrays
    slots: Slots
    version: int
    pending: int
    log: tuple[Arrival, ...]

    @property
    def dropped(self) -> int:
        """The number of gradients that were dropped."""
        return sum(arrival.dropped for arrival in self.log)

    @property
    def applied(self) -> int:
        """The number of gradients that are part of an update."""
        return len(self.log) - self.dropped - self.pending

    @property
    def seconds(self) -> float:
        """When the last gradients arrived."""
        return self.log[-1].second if self.log else 0.0

    def histogram(self, *, dropped: bool = True) -> dict[int, int]:
        """Returns how many gradients had each staleness; with dropped=False, without those that were dropped."""
        counted = Counter(arrival.staleness for arrival in self.log if dropped or not arrival.dropped)
        return dict(sorted(counted.items()))
