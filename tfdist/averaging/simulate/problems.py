"""Convex problems that are made from a seed, on which `predict` trains.

The rows of each worker and step are different ones, and are drawn alike for all workers. The weights are one array.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from tfdist.averaging.simulate.stacked import Arrays


@dataclass(frozen=True, kw_only=True)
class NoisyQuadratic:
    """The loss sum of h_j x_j**2 / 2; the gradient for one row has noise of variance noise * h_j in coordinate j.

    The curvatures h_j go from 1 down to 1 / condition, in equal ratios. As in a model, the noise is larger where the
    curvature is. The gradients are linear in the weights, so that the mean of local steps with plain SGD is
    what synchronous steps compute: this problem shows what noise and outer rules do, not what local steps cost.

    Args:
        workers: the number of workers.
        batch: the rows of a worker in a step; their mean gradient has noise of variance noise * h_j / batch.
        dimension: the number of weights.
        condition: the largest curvature divided by the smallest.
        noise: the variance of the noise for one row where the curvature is 1.
        seed: of the noise.

    Source: Zhang et al., "Which Algorithmic Choices Matter at Which Batch Sizes? Insights From a Noisy Quadratic
    Model", arXiv:1907.04164.

    Example:
        >>> problem = NoisyQuadratic(workers=4, batch=32)
        >>> gradients, rows = problem.gradient(3, 0, problem.start())
        >>> together, _ = problem.gradients(0, [np.repeat(problem.start()[0][None], 4, axis=0)])
        >>> rows, bool((together[0][3] == gradients[0]).all())
        (32, True)
    """

    workers: int
    batch: int = 32
    dimension: int = 32
    condition: float = 100.0
    noise: float = 1e4
    seed: int = 0

    @cached_property
    def curvature(self) -> np.ndarray:
        """The curvatures h_j."""
        return np.geomspace(1.0, 1.0 / self.condition, self.dimension)

    @property
    def best(self) -> float:
        """The smallest loss."""
        return 0.0

    def start(self) -> Arrays:
        """Returns the weights at the start, of which each has the same part of the loss."""
        return [1 / np.sqrt(self.curvature)]

    def loss(self, weights: Arrays) -> float:
        """Returns the loss without noise."""
        return float((self.curvature * weights[0] ** 2).sum() / 2)

    def gradient(self, worker: int, step: int, weights: Arrays) -> tuple[Arrays, int]:
        """Returns the gradient of one worker, and its rows."""
        return [self.curvature * weights[0] + self._noise(step)[worker]], self.batch

    def gradients(self, step: int, weights: Arrays) -> tuple[Arrays, np.ndarray]:
        """Returns the gradients of all workers, and their rows."""
        return [self.curvature * weights[0] + self._noise(step)], np.full(self.workers, float(self.batch))

    def _noise(self, step: int) -> np.ndarray:
        return _normal(self.workers, self.dimension, self.seed, step) * np.sqrt(
            self.noise * self.curvature / self.batch
        )


@dataclass(frozen=True, kw_only=True)
class LogisticRegression:
    """The mean logistic loss on random rows, plus decay / 2 times the squared length of the weights.

    The features have a normal distribution with standard deviations from 1 down to 0.1; the labels are drawn with the
    probabilities of random weights. In each step, the workers read the next rows, one worker after the other. After the
    last row they begin again, in another order.

    Args:
        workers: the number of workers.
        batch: the rows of a worker in a step.
        rows: the number of rows.
        dimension: the number of weights.
        decay: the weight decay, above 0.
        seed: of the rows.

    Example:
        >>> problem = LogisticRegression(workers=4, rows=1000)
        >>> gradients, rows = problem.gradient(3, 0, problem.start())
        >>> together, _ = problem.gradients(0, [np.repeat(problem.start()[0][None], 4, axis=0)])
        >>> rows, bool(np.allclose(together[0][3], gradients[0]))
        (32, True)
    """

    workers: int
    batch: int = 32
    rows: int = 8192
    dimension: int = 32
    decay: float = 1e-3
    seed: int = 0

    @cached_property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """The features, and the labels -1 and 1."""
        random = np.random.default_rng(self.seed)
        features = random.normal(size=(self.rows, self.dimension)) * np.geomspace(1.0, 0.1, self.dimension)
        chance = 1 / (1 + np.exp(-features @ random.normal(size=self.dimension)))
        return features, np.where(random.random(self.rows) < chance, 1.0, -1.0)

    @cached_property
    def best(self) -> float:
        """The smallest loss, found with Newton's method."""
        features, labels = self.data
        w = np.zeros(self.dimension)
        for _ in range(30):
            chance = _sigmoid(-labels * (features @ w))
            slope = -features.T @ (labels * chance) / self.rows + self.decay * w
            curvature = (features * (chance * (1 - chance))[:, None]).T @ features / self.rows
            w = w - np.linalg.solve(curvature + self.decay * np.eye(self.dimension), slope)
        return self.loss([w])

    def start(self) -> Arrays:
        """Returns weights of 0."""
        return [np.zeros(self.dimension)]

    def loss(self, weights: Arrays) -> float:
        """Returns the loss on all rows."""
        features, labels = self.data
        losses = np.logaddexp(0, -labels * (features @ weights[0]))
        return float(losses.mean() + self.decay / 2 * (weights[0] ** 2).sum())

    def gradient(self, worker: int, step: int, weights: Arrays) -> tuple[Arrays, int]:
        """Returns the gradient of one worker, and its rows."""
        features, labels = self._read(np.array([worker]), step)
        return [self._slope(features, labels, weights[0][None])[0]], self.batch

    def gradients(self, step: int, weights: Arrays) -> tuple[Arrays, np.ndarray]:
        """Returns the gradients of all workers, and their rows."""
        features, labels = self._read(np.arange(self.workers), step)
        return [self._slope(features, labels, weights[0])], np.full(self.workers, float(self.batch))

    def _read(self, workers: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        features, labels = self.data
        first = (step * self.workers + workers) * self.batch
        turns, places = np.divmod(first[:, None] + np.arange(self.batch), self.rows)
        if (turns == turns[0, 0]).all():
            rows = _order(self.rows, self.seed, int(turns[0, 0]))[places]
        else:
            rows = np.empty_like(places)
            for turn in np.unique(turns):
                here = turns == turn
                rows[here] = _order(self.rows, self.seed, int(turn))[places[here]]
        return features[rows], labels[rows]

    def _slope(self, features: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
        # (workers, batch, dimension) times (workers, dimension).
        errors = labels * _sigmoid(-labels * np.matmul(features, weights[:, :, None])[:, :, 0])
        return -np.matmul(errors[:, None, :], features)[:, 0, :] / self.batch + self.decay * weights


Problem = NoisyQuadratic | LogisticRegression


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


@lru_cache(maxsize=64)
def _normal(workers: int, dimension: int, seed: int, step: int) -> np.ndarray:
    return np.random.default_rng([seed, step]).normal(size=(workers, dimension))


@lru_cache(maxsize=64)
def _order(rows: int, seed: int, turn: int) -> np.ndarray:
    return np.random.default_rng([seed, turn]).permutation(rows)
