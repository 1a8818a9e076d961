"""An independent simulation of parameter servers with staleness, in float64 NumPy, event by event."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

FEATURES = 3


def batch_of(worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of a step of a worker, which both the program and the simulation use."""
    rng = np.random.default_rng([worker, step])
    x = rng.normal(size=(4, FEATURES))
    return x, x @ np.arange(1.0, FEATURES + 1) + rng.normal(size=4)


def gradient_of(worker: int, step: int, weights: np.ndarray) -> np.ndarray:
    """Returns the gradient of a step, of the mean square error of a linear model."""
    x, y = batch_of(worker, step)
    error = x @ weights[:FEATURES] + weights[FEATURES] - y
    return np.append(2 * x.T @ error, 2 * error.sum()) / len(y)


def random_events(seed: int, *, workers: int, steps: int) -> list[tuple[str, int]]:
    """Returns events in which workers pull and push in a random order."""
    rng = np.random.default_rng(seed)
    events: list[tuple[str, int]] = []
    busy: set[int] = set()
    while sum(kind == "push" for kind, _ in events) < steps:
        # Worker 0 is slow.
        worker = int(rng.choice(workers, p=np.array([0.4, *[1.0] * (workers - 1)]) / (workers - 0.6)))
        events.append(("push" if worker in busy else "pull", worker))
        busy ^= {worker}
    return events


def bounded_events(seed: int, *, workers: int, steps: int, bound: int) -> list[tuple[str, int]]:
    """Returns events in which a worker that wants to pull too early ("ask") pulls as soon as the bound lets it."""
    rng = np.random.default_rng(seed)
    events: list[tuple[str, int]] = []
    busy: set[int] = set()
    asked: set[int] = set()
    finished = [0] * workers

    def may_pull(worker: int) -> bool:
        return finished[worker] - min(finished) <= bound

    while sum(finished) < steps:
        worker = int(rng.choice(workers, p=np.array([0.4, *[1.0] * (workers - 1)]) / (workers - 0.6)))
        if worker in asked:
            continue
        if worker not in busy:
            events.append(("pull" if may_pull(worker) else "ask", worker))
            (busy if may_pull(worker) else asked).add(worker)
            continue
        events.append(("push", worker))
        busy.remove(worker)
        finished[worker] += 1
        for waiting in sorted(asked):
            if may_pull(waiting):
                events.append(("pull", waiting))
                asked.remove(waiting)
                busy.add(waiting)
    return events


def events_of(scenario: Any, *, workers: int) -> list[tuple[str, int]]:
    """Returns the events of a scenario."""
    bound = scenario.staleness.bound
    if bound is None:
        return random_events(scenario.seed, workers=workers, steps=scenario.steps)
    return bounded_events(scenario.seed, workers=workers, steps=scenario.steps, bound=bound)


@dataclasses.dataclass
class Sgd:
    """Momentum as Keras has it: velocity = m * velocity - rate * g; w += velocity."""

    rate: float
    momentum: float = 0.0
    velocity: Any = 0.0

    def step(self, w: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        self.velocity = self.momentum * self.velocity - self.rate * factor * g
        return w + self.velocity


@dataclasses.dataclass
class Adam:
    rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    m: Any = 0.0
    v: Any = 0.0
    t: int = 0

    def step(self, w: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        self.t += 1
        self.m = self.beta_1 * self.m + (1 - self.beta_1) * g
        self.v = self.beta_2 * self.v + (1 - self.beta_2) * g * g
        rate = self.rate * factor * np.sqrt(1 - self.beta_2**self.t) / (1 - self.beta_1**self.t)
        return w - rate * self.m / (np.sqrt(self.v) + 1e-7)


def simulate(
    events: Sequence[tuple[str, int]],
    optimizer: Any,
    *,
    scale: Callable[[int], float] = lambda tau: 1.0,
    drop_above: int | None = None,
    soft_sync: int = 1,
) -> dict[str, Any]:
    """Returns the weights, and after each push [updates, applied, dropped, waiting]; and the histogram."""
    weights, version = np.zeros(FEATURES + 1), 0
    pulled: dict[int, tuple[np.ndarray, int]] = {}
    steps: dict[int, int] = {}
    waiting: list[tuple[np.ndarray, float]] = []
    applied = dropped = 0
    taus: list[int] = []
    counts = []
    for kind, worker in (event for event in events if event[0] != "ask"):
        if kind == "pull":
            pulled[worker] = weights, version
            continue
        old, old_version = pulled.pop(worker)
        gradient = gradient_of(worker, steps.get(worker, 0), old)
        steps[worker] = steps.get(worker, 0) + 1
        tau = version - old_version
        taus.append(tau)
        if drop_above is not None and tau > drop_above:
            dropped += 1
        else:
            waiting.append((gradient, scale(tau)))
        if len(waiting) == soft_sync:
            total = sum(factor for _, factor in waiting)
            mean = sum(factor * g for g, factor in waiting) / total
            weights = optimizer.step(weights, mean, total / soft_sync)
            version, applied, waiting = version + 1, applied + soft_sync, []
        counts.append([version, applied, dropped, len(waiting)])
    return {"weights": weights.tolist(), "counts": counts, "histogram": np.bincount(taus, minlength=65).tolist()}
