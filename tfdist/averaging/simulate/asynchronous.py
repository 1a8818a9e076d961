"""Asynchronous SGD with a parameter server: versions, staleness, and what is done about it.

The server counts its updates: version 0 is that of the weights at the start. A worker pulls the weights, computes the
gradients of one step, and pushes them. The staleness of a push is the version then minus the version that was pulled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tfdist.averaging.simulate.arrivals import Arrival, AsynchronousResult
from tfdist.averaging.simulate.optimizers import Optimizer
from tfdist.averaging.simulate.stacked import Arrays, Gradient, float64, one_gradient

Event = tuple[Literal["pull", "push"], int]
"""What a worker does in a scripted order."""


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """What the server does about staleness.

    Args:
        scale: the factor of the learning rate: "1/tau" divides by the staleness where it is above 1 (Zhang et al.,
            arXiv:1511.05950), None, the default of the simulator, is 1, and a function receives the staleness.
        drop_above: gradients with a larger staleness are dropped; None drops none.
        bound: a worker begins a step only if it has finished at most this many steps more than the slowest worker has
            (stale synchronous parallel, Ho et al., NIPS 2013). 0 makes all workers wait for each other after each step.
        soft_sync: an update is the mean of this many gradients (n-softsync). With the number of workers minus b it is
            like b backup workers, except that late gradients count for the next update, unless drop_above is 0.

    Example:
        >>> [Staleness(scale="1/tau").factor(tau) for tau in (0, 1, 4)]
        [1.0, 1.0, 0.25]
    """

    scale: Literal["1/tau"] | Callable[[int], float] | None = None
    drop_above: int | None = None
    bound: int | None = None
    soft_sync: int = 1

    def __post_init__(self) -> None:
        if not (self.scale is None or self.scale == "1/tau" or callable(self.scale)):
            raise ValueError(f"expected scale to be '1/tau', None or a function, received {self.scale!r}.")
        for name, value in (("drop_above", self.drop_above), ("bound", self.bound)):
            if value is not None and value < 0:
                raise ValueError(f"expected {name} of 0 or more, or None, received {value!r}.")
        if self.soft_sync < 1:
            raise ValueError(f"expected soft_sync of at least 1, received {self.soft_sync!r}.")

    def factor(self, staleness: int) -> float:
        """Returns the factor of the learning rate for gradients of a staleness."""
        if self.scale is None:
            return 1.0
        return float(self.scale(staleness)) if callable(self.scale) else 1.0 / max(staleness, 1)

    def drops(self, staleness: int) -> bool:
        """Returns whether gradients of a staleness are dropped."""
        return self.drop_above is not None and staleness > self.drop_above


@dataclass
class Server:
    """The parameter server, and what the workers have pulled and finished."""

    gradient: Gradient
    optimizer: Optimizer
    staleness: Staleness
    weights: Arrays
    workers: int
    version: int = 0
    finished: list[int] = field(default_factory=list)
    log: list[Arrival] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"expected at least 1 worker, received {self.workers!r}.")
        self.slots = self.optimizer.slots(self.weights)
        self.finished = [0] * self.workers
        self._pulled: dict[int, tuple[int, Arrays, float]] = {}
        self._waiting: list[tuple[float, Arrays]] = []

    def may_begin(self, worker: int) -> bool:
        """Returns whether the bound lets a worker begin its next step."""
        bound = self.staleness.bound
        return bound is None or self.finished[worker] - min(self.finished) <= bound

    def pull(self, worker: int, *, second: float) -> None:
        """Gives the present weights to a worker."""
        # The optimizers make new arrays, so that nothing changes the arrays that a worker has pulled.
        self._pulled[worker] = (self.version, self.weights, second)

    def push(self, worker: int, *, second: float) -> Arrival:
        """Takes the gradients of a worker, and updates the weights if these complete an update."""
        if worker not in self._pulled:
            raise ValueError(f"expected a pull of worker {worker} before each of its pushes, received none.")
        pulled, weights, began = self._pulled.pop(worker)
        step, tau = self.finished[worker], self.version - pulled
        dropped, factor = self.staleness.drops(tau), self.staleness.factor(tau)
        if not dropped:
            found, rows = self.gradient(worker, step, weights)
            gradients = [one_gradient(found, rows, place=place, like=old) for place, old in enumerate(weights)]
            self._waiting.append((factor, gradients))
        arrival = Arrival(
            worker=worker,
            step=step,
            began=began,
            second=second,
            pulled=pulled,
            version=self.version,
            factor=0.0 if dropped else factor,
            dropped=dropped,
        )
        self.log.append(arrival)
        self.finished[worker] += 1
        if len(self._waiting) == self.staleness.soft_sync:
            self._update()
        return arrival

    def result(self) -> AsynchronousResult:
        """Returns the present state."""
        return AsynchronousResult(self.weights, self.slots, self.version, len(self._waiting), tuple(self.log))

    def _update(self) -> None:
        factors = [factor for factor, _ in self._waiting]
        total = sum(factors)
        # The mean of factor * gradient, written as a mean gradient and a factor of the learning rate: a factor of the
        # gradient would not change what Adam does.
        parts = [factor / total if total else 0.0 for factor in factors]
        gradients = [
            np.sum([part * arrays[place] for part, (_, arrays) in zip(parts, self._waiting, strict=True)], axis=0)
            for place in range(len(self.weights))
        ]
        self.weights, self.slots = self.optimizer.update(
            self.weights, self.slots, gradients, step=self.version, scale=total / len(factors)
        )
        self._waiting = []
        self.version += 1


def asynchronous(
    gradient: Gradient,
    weights: Sequence[np.ndarray],
    *,
    workers: int,
    optimizer: Optimizer,
    staleness: Staleness = Staleness(),
    order: Sequence[Event] | None = None,
    seconds: Callable[[int, int], float] | None = None,
    steps: int | None = None,
    total_steps: int | None = None,
) -> AsynchronousResult:
    """Trains with a parameter server, in a given order or by the time that each step takes.

    Args:
        gradient: a function of worker, step and weights; the step is the number of steps that the worker has finished.
            A worker without rows pushes gradients of 0, which count as others do.
        weights: the weights at the start.
        workers: the number of workers.
        optimizer: the optimizer of the server. Its step is the version.
        staleness: what the server does about staleness.
        order: the events, as ("pull", worker) or ("push", worker); see `pushes`. Instead of seconds and steps.
        seconds: a function of worker and step that returns how long the step takes, from the pull to the push. Of
            events at the same time, that of the worker with the lower number is first.
        steps: the number of steps of each worker.
        total_steps: the number of steps of all workers together, instead of steps: a free worker takes the next one.

    Raises:
        ValueError: the order has a pull that the bound forbids, or a push without a pull.

    Example:
        >>> from tfdist.averaging import simulate
        >>> def gradient(worker, step, weights):
        ...     return [weights[0]], 1
        >>> result = asynchronous(
        ...     gradient,
        ...     [np.array(1.0)],
        ...     workers=2,
        ...     optimizer=simulate.SGD(0.5),
        ...     staleness=Staleness(drop_above=1),
        ...     seconds=lambda worker, step: 1.0 if worker == 0 else 4.0,
        ...     steps=3,
        ... )
        >>> result.version, result.applied, result.dropped, result.histogram()
        (5, 5, 1, {0: 5, 3: 1})
    """
    server = Server(gradient, optimizer, staleness, float64(weights), workers)
    if order is not None:
        if not (seconds is None and steps is None and total_steps is None):
            raise ValueError("expected an order, or seconds and steps, received both.")
        for number, (what, worker) in enumerate(order):
            if not 0 <= worker < workers:
                raise ValueError(f"expected a worker from 0 to {workers - 1}, received {worker}.")
            if what == "push":
                server.push(worker, second=float(number))
            elif server.may_begin(worker):
                server.pull(worker, second=float(number))
            else:
                raise ValueError(f"expected no pull that the bound forbids, received event {number}: {(what, worker)}.")
        return server.result()
    for _ in arrivals(server, seconds=seconds, steps=steps, total_steps=total_steps):
        pass
    return server.result()


def arrivals(
    server: Server,
    *,
    seconds: Callable[[int, int], float] | None,
    steps: int | None = None,
    total_steps: int | None = None,
    busy_seconds: float = 0.0,
) -> Iterator[Arrival]:
    """Yields each push, in the order of time; the reader may stop early.

    Args:
        server: the server, which changes.
        seconds: how long a step of a worker takes, from the pull until the gradients are at the server.
        steps: the number of steps of each worker.
        total_steps: the number of steps of all workers together.
        busy_seconds: how long the server is busy with the gradients of one step. Others wait in the order of arrival.
    """
    if seconds is None:
        raise ValueError("expected an order, or seconds, received neither.")
    if (steps is None) == (total_steps is None):
        raise ValueError(f"expected either steps or total_steps, received steps={steps}, total_steps={total_steps}.")
    queue: list[tuple[float, int, bool]] = []
    begun = [0] * server.workers
    idle = set(range(server.workers))
    free = 0.0

    def begin(now: float) -> None:
        for worker in sorted(idle):
            if total_steps is not None and sum(begun) >= total_steps:
                return
            if (steps is None or begun[worker] < steps) and server.may_begin(worker):
                server.pull(worker, second=now)
                heapq.heappush(queue, (now + seconds(worker, begun[worker]), worker, False))
                begun[worker] += 1
                idle.remove(worker)

    begin(0.0)
    while queue:
        now, worker, served = heapq.heappop(queue)
        if busy_seconds and not served:
            free = max(now, free) + busy_seconds
            heapq.heappush(queue, (free, worker, True))
            continue
        arrival = server.push(worker, second=now)
        idle.add(worker)
        begin(now)
        yield arrival


def pushes(workers: Sequence[int]) -> list[Event]:
    """Returns the order in which all workers pull at the start, and pull again after each of their pushes.

    Args:
        workers: the worker of each push.

    Example:
        >>> pushes([1, 0])
        [('pull', 0), ('pull', 1), ('push', 1), ('pull', 1), ('push', 0), ('pull', 0)]
    """
    order: list[Event] = [("pull", worker) for worker in sorted(set(workers))]
    for worker in workers:
        order += [("push", worker), ("pull", worker)]
    return order
