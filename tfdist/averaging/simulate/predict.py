"""How long a training takes until a loss: the steps of an algorithm on a convex problem, and a model of their time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tfdist.averaging.simulate.asynchronous import Server, arrivals
from tfdist.averaging.simulate.gossip import d_psgd_steps
from tfdist.averaging.simulate.local import Rounds, local_steps
from tfdist.averaging.simulate.methods import Gossip, Method, ParameterServer, Synchronous
from tfdist.averaging.simulate.optimizers import Optimizer
from tfdist.averaging.simulate.problems import Problem
from tfdist.averaging.simulate.stacked import AllWorkers, Arrays, float64
from tfdist.averaging.simulate.times import Link, Machines, gossip_times, local_times

CHECKS = 8
"""How often the loss is computed with a parameter server while the workers make one step on average."""


@dataclass(frozen=True)
class Prediction:
    """When the loss was reached.

    Args:
        seconds: the time; None if the loss was not reached.
        steps: the steps of each worker until then; of a parameter server, the mean number.
        sent_bytes: what a worker has sent until then, of the worker that sent most.

    Example:
        >>> Prediction(12.0, 80, 1e9).seconds
        12.0
    """

    seconds: float | None
    steps: float
    sent_bytes: float


def predict(
    problem: Problem,
    method: Method,
    *,
    machines: Machines,
    link: Link,
    size: float,
    optimizer: Optimizer,
    part: float = 0.01,
    max_steps: int = 2000,
    max_seconds: float = math.inf,
) -> Prediction:
    """Returns how long a training takes until the loss above the smallest one is a part of that at the start.

    The loss is computed where the algorithm makes the mean of the weights: after a synchronous step or a meeting. For
    D-PSGD it is that of the mean over the workers after each step; with a parameter server it is computed 8 times
    while the workers make one step on average.

    Args:
        problem: the problem, for as many workers as there are machines.
        method: the algorithm.
        machines: how long the workers compute.
        link: the links between them.
        size: the bytes of the gradients, and of the weights. They are those of the model that you plan for, and not
            those of the problem. A meeting that averages slots sends as many bytes again for each slot.
        optimizer: the optimizer of each worker, or of the server.
        part: the part of the loss.
        max_steps: the steps of each worker after which the loss counts as not reached.
        max_seconds: the time after which the loss counts as not reached.

    Example:
        >>> from tfdist.averaging import simulate
        >>> found = predict(
        ...     simulate.NoisyQuadratic(workers=8, noise=1.0),
        ...     Synchronous(),
        ...     machines=simulate.Machines.alike(8, seconds=0.1),
        ...     link=simulate.Link(latency_seconds=1e-4, bytes_per_second=1.25e8),
        ...     size=1e8,
        ...     optimizer=simulate.SGD(0.5),
        ... )
        >>> round(found.seconds / found.steps, 3)  # 0.1 s, and 7/4 of 1e8 bytes
        1.501
    """
    if problem.workers != machines.workers:
        raise ValueError(f"expected a problem for {machines.workers} workers, received one for {problem.workers}.")
    if isinstance(method, ParameterServer):
        return _of_parameter_server(problem, method, machines, link, size, optimizer, part, max_steps, max_seconds)
    steps = steps_to_loss(problem, method, optimizer=optimizer, part=part, max_steps=max_steps)
    if steps is None:
        return Prediction(None, max_steps, math.nan)
    seconds, sent = _time_and_bytes(problem, method, steps, machines, link, size, optimizer)
    return Prediction(seconds, steps, sent) if seconds <= max_seconds else Prediction(None, max_steps, math.nan)


def fastest(
    problem: Problem,
    method: Method,
    *,
    machines: Machines,
    link: Link,
    size: float,
    optimizers: Sequence[Optimizer],
    part: float = 0.01,
    max_steps: int = 2000,
) -> tuple[Prediction, Optimizer]:
    """Returns the prediction with the optimizer that reaches the loss first, and that optimizer.

    Args:
        problem: as for `predict`.
        method: as for `predict`.
        machines: as for `predict`.
        link: as for `predict`.
        size: as for `predict`.
        optimizers: the optimizers to try, such as SGD with several learning rates.
        part: as for `predict`.
        max_steps: as for `predict`.

    Example:
        >>> from tfdist.averaging import simulate
        >>> _, optimizer = fastest(
        ...     simulate.NoisyQuadratic(workers=4, noise=1.0),
        ...     Synchronous(),
        ...     machines=simulate.Machines.alike(4, seconds=0.1),
        ...     link=simulate.Link(latency_seconds=1e-4, bytes_per_second=1.25e8),
        ...     size=1e8,
        ...     optimizers=[simulate.SGD(0.001), simulate.SGD(0.5)],
        ... )
        >>> optimizer.learning_rate
        0.5
    """
    if not optimizers:
        raise ValueError("expected at least one optimizer to try, received none.")
    best, chosen = Prediction(None, max_steps, math.nan), optimizers[0]
    for optimizer in optimizers:
        found = predict(
            problem,
            method,
            machines=machines,
            link=link,
            size=size,
            optimizer=optimizer,
            part=part,
            max_steps=max_steps,
            max_seconds=math.inf if best.seconds is None else best.seconds,
        )
        if found.seconds is not None and (best.seconds is None or found.seconds < best.seconds):
            best, chosen = found, optimizer
    return best, chosen


@lru_cache(maxsize=1024)
def steps_to_loss(
    problem: Problem, method: Synchronous | Rounds | Gossip, *, optimizer: Optimizer, part: float, max_steps: int
) -> int | None:
    """Returns after how many steps the loss is reached, which does not depend on the time; None if it is not.

    Args:
        problem: as for `predict`.
        method: as for `predict`.
        optimizer: as for `predict`.
        part: as for `predict`.
        max_steps: as for `predict`.
    """
    reached = _goal(problem, part)
    for step, weights in _states(problem, method, optimizer, max_steps):
        if (answer := reached(weights)) is not None:
            return step + 1 if answer else None
    return None


def _goal(problem: Problem, part: float) -> Callable[[Arrays], bool | None]:
    """Returns a function of weights that returns whether the loss is reached (True) or diverges (False), or None."""
    first = problem.loss(problem.start())
    goal = problem.best + part * (first - problem.best)

    def reached(weights: Arrays) -> bool | None:
        loss = problem.loss(weights)
        return True if loss <= goal else None if loss < 100 * first else False

    return reached


def _rounds(method: Synchronous | Rounds, steps: int) -> Rounds:
    return Rounds(start_step=steps) if isinstance(method, Synchronous) else method


def _states(
    problem: Problem, method: Synchronous | Rounds | Gossip, optimizer: Optimizer, steps: int
) -> Iterator[tuple[int, Arrays]]:
    gradients, start = AllWorkers(problem.gradients), problem.start()
    if isinstance(method, Gossip):
        states = d_psgd_steps(gradients, start, steps=steps, optimizer=optimizer, mixing=method.mixing)
        yield from ((step, state.seen) for step, state in enumerate(states))
        return
    rounds = _rounds(method, steps)
    for state in local_steps(
        gradients, start, workers=problem.workers, steps=steps, optimizer=optimizer, rounds=rounds
    ):
        if state.step < rounds.start_step or state.since == 0:
            yield state.step, state.anchor


def _time_and_bytes(
    problem: Problem,
    method: Synchronous | Rounds | Gossip,
    steps: int,
    machines: Machines,
    link: Link,
    size: float,
    optimizer: Optimizer,
) -> tuple[float, float]:
    if isinstance(method, Gossip):
        ends = gossip_times(machines, link=link, size=size, steps=steps, mixing=method.mixing)
        return float(ends[-1]), size * sum(len(method.mixing.sends_to(worker=0, step=step)) for step in range(steps))
    rounds = _rounds(method, steps)
    meetings = rounds.meetings(steps)
    meeting_size = size * (1 + rounds.average_slots * len(optimizer.slots(problem.start())))
    ends = local_times(
        machines,
        link=link,
        size=size,
        steps=steps,
        meetings=meetings,
        start_step=rounds.start_step,
        meeting_size=meeting_size,
    )
    sums = min(rounds.start_step, steps) * size + len(meetings) * meeting_size
    return float(ends[-1]), 2 * (problem.workers - 1) / problem.workers * sums


def _of_parameter_server(
    problem: Problem,
    method: ParameterServer,
    machines: Machines,
    link: Link,
    size: float,
    optimizer: Optimizer,
    part: float,
    max_steps: int,
    max_seconds: float,
) -> Prediction:
    # A worker pulls, computes and pushes. While a part of the push arrives, the link of the servers is busy.
    transfer = size / link.bytes_per_second
    busy = transfer / method.servers
    apart = 2 * link.latency_seconds + transfer + (transfer - busy)
    server = Server(problem.gradient, optimizer, method.staleness, float64(problem.start()), problem.workers)
    pushed = arrivals(
        server,
        seconds=lambda worker, step: machines.seconds(worker, step) + apart,
        total_steps=max_steps * problem.workers,
        busy_seconds=busy,
    )
    reached = _goal(problem, part)
    version, every = 0, math.ceil(problem.workers / CHECKS)
    for number, arrival in enumerate(pushed, 1):
        if arrival.second > max_seconds:
            break
        if number % every == 0 and server.version > version:
            version = server.version
            if (answer := reached(server.weights)) is not None:
                if not answer:
                    break
                return Prediction(arrival.second, number / problem.workers, max(server.finished) * size)
    return Prediction(None, max_steps, math.nan)
