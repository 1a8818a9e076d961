"""Local SGD: the workers train alone, and meet every few steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tfdist.averaging.simulate.optimizers import Optimizer, Slots
from tfdist.averaging.simulate.outer import Average, ElasticAverage, Outer
from tfdist.averaging.simulate.stacked import AllWorkers, Arrays, Gradient, copies, evaluate, float64, shares, weighted


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """When the workers meet, and what they do then.

    Args:
        every: the workers meet after a step if this many steps have passed since the last meeting. A function receives
            the number of the step that has just ended, counted from 0.
        start_step: the steps before this one are synchronous: all workers use the mean gradient over the rows of all
            (post-local SGD, Lin et al., arXiv:1808.07217).
        outer: the outer rule.
        average_slots: whether a meeting averages the slots of the optimizers too, with the weights of the workers.
            Otherwise each worker keeps its own. ElasticAverage leaves the slots alone, and needs False.

    Example:
        >>> Rounds(every=4).meetings(10)
        (3, 7)
        >>> Rounds(every=lambda step: 1 if step < 2 else 3).meetings(8)
        (0, 1, 4, 7)
    """

    every: int | Callable[[int], int] = 16
    start_step: int = 0
    outer: Outer = field(default_factory=Average)
    average_slots: bool = True

    def __post_init__(self) -> None:
        if not callable(self.every):
            _check_every(self.every)
        if self.start_step < 0:
            raise ValueError(f"expected start_step of 0 or more, received {self.start_step!r}.")
        if isinstance(self.outer, ElasticAverage) and self.average_slots:
            raise ValueError("expected average_slots=False with ElasticAverage, received True.")

    def is_due(self, *, step: int, since: int) -> bool:
        """Returns whether the workers meet after a step, `since` steps after the last meeting."""
        return since >= _check_every(self.every(step) if callable(self.every) else self.every)

    def meetings(self, steps: int) -> tuple[int, ...]:
        """Returns the steps after which the workers meet, without the synchronous ones."""
        found: list[int] = []
        last = self.start_step - 1
        for step in range(self.start_step, steps):
            if self.is_due(step=step, since=step - last):
                found.append(step)
                last = step
        return tuple(found)


@dataclass(frozen=True)
class LocalState:
    """The workers after a step.

    Args:
        step: the number of the step, counted from 0; -1 before the first step.
        weights: the weights; the first axis of each array is that of the workers.
        slots: the slots of the optimizers, with the same axis.
        anchor: the weights after the last meeting; the centre of ElasticAverage.
        momentum: the outer momentum u.
        rows: the rows of each worker since the last meeting.
        since: the number of steps since the last meeting.
        elastic: whether the outer rule is ElasticAverage.
    """

    step: int
    weights: Arrays
    slots: Slots
    anchor: Arrays
    momentum: Arrays
    rows: np.ndarray
    since: int
    elastic: bool

    @property
    def seen(self) -> Arrays:
        """What evaluation and saving see: the mean, weighted with the rows since the last meeting, or the centre."""
        return self.anchor if self.elastic else weighted(shares(self.rows), self.weights)


@dataclass(frozen=True)
class LocalResult:
    """The end of `local_sgd`.

    Args:
        weights: the weights; the first axis of each array is that of the workers.
        slots: the slots of the optimizers, with the same axis.
        anchor: the weights after the last meeting; the centre of ElasticAverage.
        momentum: the outer momentum u.
        seen: what evaluation and saving would see after each step.
        meetings: the steps after which the workers met, without the synchronous ones.

    Example:
        >>> from tfdist.averaging import simulate
        >>> result = simulate.local_sgd(
        ...     lambda worker, step, weights: ([weights[0]], 1),
        ...     [np.array(1.0)],
        ...     workers=2,
        ...     steps=3,
        ...     optimizer=simulate.SGD(0.5),
        ...     rounds=simulate.Rounds(every=2),
        ... )
        >>> result.meetings, [float(weights[0]) for weights in result.seen]
        ((1,), [0.5, 0.25, 0.125])
    """

    weights: Arrays
    slots: Slots
    anchor: Arrays
    momentum: Arrays
    seen: tuple[Arrays, ...]
    meetings: tuple[int, ...]


def local_sgd(
    gradient: Gradient | AllWorkers,
    weights: Sequence[np.ndarray],
    *,
    workers: int,
    steps: int,
    optimizer: Optimizer,
    rounds: Rounds,
) -> LocalResult:
    """Trains with local steps and meetings.

    Args:
        gradient: a function of worker, step and weights that returns the gradients of the mean loss over the worker's
            rows of this step, and the number of rows; or `AllWorkers`. A worker without rows has gradients of 0 in this
            step, so that momentum moves it on, and no weight for this step.
        weights: the weights at the start, the same on all workers.
        workers: the number of workers.
        steps: the number of steps.
        optimizer: the optimizer of each worker.
        rounds: when the workers meet, and the outer rule.

    Returns:
        A LocalResult.

    Example:
        >>> from tfdist.averaging import simulate
        >>> def gradient(worker, step, weights):  # of (x - worker)**2 / 2, from worker + 1 rows
        ...     return [weights[0] - worker], worker + 1
        >>> result = local_sgd(
        ...     gradient, [np.array(2.0)], workers=2, steps=4, optimizer=simulate.SGD(0.5), rounds=Rounds(every=2)
        ... )
        >>> result.meetings, result.weights[0].round(4)
        ((1, 3), array([0.75, 0.75]))
    """
    seen: list[Arrays] = []
    state = None
    for state in local_steps(gradient, weights, workers=workers, steps=steps, optimizer=optimizer, rounds=rounds):
        seen.append(state.seen)
    state = state or _first(weights, workers, optimizer, rounds)
    meetings = rounds.meetings(steps)
    return LocalResult(state.weights, state.slots, state.anchor, state.momentum, tuple(seen), meetings)


def local_steps(
    gradient: Gradient | AllWorkers,
    weights: Sequence[np.ndarray],
    *,
    workers: int,
    steps: int,
    optimizer: Optimizer,
    rounds: Rounds,
) -> Iterator[LocalState]:
    """Yields the state after each step of `local_sgd`; the reader may stop early."""
    state = _first(weights, workers, optimizer, rounds)
    for step in range(steps):
        state = _stepped(gradient, replace(state, step=step), workers=workers, optimizer=optimizer, rounds=rounds)
        if step >= rounds.start_step and rounds.is_due(step=step, since=state.since):
            state = _met(state, workers=workers, rounds=rounds)
        yield state


def _first(weights: Sequence[np.ndarray], workers: int, optimizer: Optimizer, rounds: Rounds) -> LocalState:
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, received {workers!r}.")
    anchor = float64(weights)
    all_weights = copies(anchor, workers)
    zeros = [np.zeros_like(array) for array in anchor]
    slots = optimizer.slots(all_weights)
    return LocalState(-1, all_weights, slots, anchor, zeros, np.zeros(workers), 0, _is_elastic(rounds))


def _stepped(
    gradient: Gradient | AllWorkers, state: LocalState, *, workers: int, optimizer: Optimizer, rounds: Rounds
) -> LocalState:
    gradients, rows = evaluate(gradient, workers=workers, step=state.step, weights=state.weights)
    if state.step < rounds.start_step:
        gradients = copies(weighted(shares(rows), gradients), workers)
    weights, slots = optimizer.update(state.weights, state.slots, gradients, step=state.step)
    if state.step < rounds.start_step:
        # All workers are the same, and the first round begins after the last synchronous step.
        return replace(state, weights=weights, slots=slots, anchor=[array[0] for array in weights])
    return replace(state, weights=weights, slots=slots, rows=state.rows + rows, since=state.since + 1)


def _met(state: LocalState, *, workers: int, rounds: Rounds) -> LocalState:
    part = shares(state.rows)
    state = replace(state, rows=np.zeros(workers), since=0)
    if isinstance(rounds.outer, ElasticAverage):
        weights, anchor = rounds.outer.attracted(state.weights, state.anchor)
        return replace(state, weights=weights, anchor=anchor)
    difference = weighted(part, [x - all_of_them for x, all_of_them in zip(state.anchor, state.weights, strict=True)])
    anchor, momentum = rounds.outer.moved(state.anchor, difference, state.momentum)
    slots = state.slots
    if rounds.average_slots:
        slots = {name: copies(weighted(part, arrays), workers) for name, arrays in slots.items()}
    return replace(state, weights=copies(anchor, workers), slots=slots, anchor=anchor, momentum=momentum)


def _is_elastic(rounds: Rounds) -> bool:
    return isinstance(rounds.outer, ElasticAverage)


def _check_every(every: int) -> int:
    if every < 1:
        raise ValueError(f"expected every to be at least 1, received {every!r}.")
    return every
