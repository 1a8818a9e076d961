"""Least squares on random rows, dealt to workers: the gradient functions of the tests of the simulator."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Rows:
    """Rows of a linear regression with a matrix and a bias; worker w has counts[step % len][w] rows of a step."""

    counts: tuple[tuple[int, ...], ...]
    seed: int = 0
    target: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.target = np.random.default_rng(self.seed).normal(size=(3, 2))

    def rows(self, worker: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        count = self.counts[step % len(self.counts)][worker]
        random = np.random.default_rng([self.seed, worker, step])
        x = random.normal(size=(count, 3))
        return x, x @ self.target + random.normal(size=(count, 2)) / 10

    def mean_gradient(self, x: np.ndarray, y: np.ndarray, weights: list[np.ndarray]) -> list[np.ndarray]:
        error = x @ weights[0] + weights[1] - y
        return [x.T @ error / len(x), error.mean(axis=0)]

    def __call__(self, worker: int, step: int, weights: list[np.ndarray]) -> tuple[list[np.ndarray], int]:
        x, y = self.rows(worker, step)
        if not len(x):
            # The mean over no rows: the simulator must not use it.
            return [np.full((3, 2), np.nan), np.full(2, np.nan)], 0
        return self.mean_gradient(x, y, weights), len(x)

    def joined(self, step: int, weights: list[np.ndarray]) -> list[np.ndarray]:
        """The gradients of the mean loss over the rows of all workers: what one device computes."""
        parts = [self.rows(worker, step) for worker in range(len(self.counts[0]))]
        return self.mean_gradient(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]), weights)

    @staticmethod
    def start() -> list[np.ndarray]:
        return [np.full((3, 2), 0.25), np.array([0.5, -0.5])]


EVEN = Rows(((4, 4, 4),))
UNEVEN = Rows(((4, 4, 4), (4, 3, 2), (4, 1, 0), (2, 0, 0)))


def on_one_device(rows: Rows, *, steps: int, rate: float, momentum: float = 0.0, nesterov: bool = False) -> list:
    """Gradient descent with momentum on the rows of all workers, written with loops of its own."""
    w, m = rows.start(), [np.zeros((3, 2)), np.zeros(2)]
    for step in range(steps):
        for place, g in enumerate(rows.joined(step, w)):
            m[place] = momentum * m[place] - rate * g
            w[place] = w[place] + (momentum * m[place] - rate * g if nesterov else m[place])
    return w
