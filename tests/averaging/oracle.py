"""Local SGD in numpy: an independent computation of what the replicas come to, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

REPLICAS_AT_MOST = 4
STEPS = 10
FEATURES, UNITS = 4, 3
Arrays = list[np.ndarray]


def rows_of(replica: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs and targets of a replica in a step: from one to four rows, and now and then none."""
    rng = np.random.default_rng([replica, step % STEPS])
    count = (2 * replica + 3 * (step % STEPS)) % 5
    x = rng.normal(size=(count, FEATURES))
    return x, np.sin(x.sum(1, keepdims=True)) + replica


def first_weights() -> Arrays:
    rng = np.random.default_rng(7)
    shapes = [(FEATURES, UNITS), (UNITS,), (UNITS, 1), (1,)]
    return [rng.normal(size=shape) / 2 for shape in shapes]


def gradient(weights: Arrays, x: np.ndarray, y: np.ndarray) -> Arrays:
    """Returns the gradient of the mean squared error over some rows; zeros if there are none."""
    first, bias, second, last = weights
    if not len(x):
        return [np.zeros_like(weight) for weight in weights]
    hidden = np.tanh(x @ first + bias)
    error = 2 * (hidden @ second + last - y) / len(x)
    back = (error @ second.T) * (1 - hidden**2)
    return [x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


@dataclasses.dataclass
class Trained:
    """What replicas have come to.

    Attributes:
        own: the weights of each replica.
        slots: the momentum of each replica.
        seen: what evaluation sees.
    """

    own: list[Arrays]
    slots: list[Arrays]
    seen: Arrays


class PowerSgd:
    """Sums matrices of replicas by PowerSGD with error feedback (Vogels et al. 2019, algorithms 1 and 2)."""

    def __init__(self, replicas: int, rank: int) -> None:
        self.errors = [np.zeros((FEATURES, UNITS))] * replicas
        self.right = np.random.default_rng(0).normal(size=(UNITS, rank)).astype(np.float32).astype(float)

    def __call__(self, matrices: Arrays) -> np.ndarray:
        corrected = [matrix + error for matrix, error in zip(matrices, self.errors, strict=True)]
        left = np.linalg.qr(sum(matrix @ self.right for matrix in corrected))[0]
        rights = [matrix.T @ left for matrix in corrected]
        self.errors = [matrix - left @ right.T for matrix, right in zip(corrected, rights, strict=True)]
        self.right = sum(rights)
        return left @ self.right.T


def train(
    replicas: int,
    steps: int,
    *,
    every: Callable[[int], int],
    outer: str = "average",
    start_step: int = 0,
    rate: float = 0.05,
    momentum: float = 0.0,
    average_slots: bool = True,
    outer_rate: float = 1.0,
    outer_momentum: float = 0.0,
    is_loop: bool = False,
    overlap: bool = False,
    rank: int = 0,
) -> Trained:
    """Trains with SGD and momentum on replicas that meet from time to time.

    In a loop of one's own the loss of a replica is divided by the global batch, and all replicas count alike. With
    overlap, what comes of a meeting is known at the next one. With a rank, the changes of the first weights are sent
    by PowerSGD with error feedback.
    """
    of_first = PowerSgd(replicas, rank)
    own = [first_weights() for _ in range(replicas)]
    slots = [[np.zeros_like(weight) for weight in first_weights()] for _ in range(replicas)]
    common, velocity = first_weights(), [np.zeros_like(weight) for weight in first_weights()]
    rows, since = np.zeros(replicas), 0
    # The weights with which the replicas have met, what comes of it, and the shares.
    late: tuple[list[Arrays], list[Arrays], Arrays, Arrays, np.ndarray] | None = None

    def mean(values: list[Arrays], weights: np.ndarray) -> Arrays:
        return [
            sum(w * value for w, value in zip(weights, column, strict=True)) for column in zip(*values, strict=True)
        ]

    def shares() -> np.ndarray:
        if not rows.sum() and late:
            return late[4]
        return rows / rows.sum() if rows.sum() else np.full(replicas, 1 / replicas)

    def meet(own: list[Arrays], common: Arrays, velocity: Arrays) -> tuple[list[Arrays], Arrays, Arrays]:
        """Returns the next weights of the replicas, the common ones and the velocity."""
        if outer == "elastic":
            pulls = [[outer_rate * (c - x) for c, x in zip(common, weights, strict=True)] for weights in own]
            own = [
                [x + p for x, p in zip(weights, pull, strict=True)] for weights, pull in zip(own, pulls, strict=True)
            ]
            return own, [c - sum(column) for c, column in zip(common, zip(*pulls, strict=True), strict=True)], velocity
        change = [c - x for c, x in zip(common, mean(own, shares()), strict=True)]
        if rank:
            change[0] = of_first([w * (common[0] - weights[0]) for w, weights in zip(shares(), own, strict=True)])
        velocity = [outer_momentum * v + d for v, d in zip(velocity, change, strict=True)]
        ahead = (
            [d + outer_momentum * v for d, v in zip(change, velocity, strict=True)] if outer == "nesterov" else velocity
        )
        common = [c - outer_rate * a for c, a in zip(common, ahead, strict=True)]
        return [common] * replicas, common, velocity

    for step in range(steps):
        data = [rows_of(replica, step) for replica in range(replicas)]
        counts = np.array([len(x) for x, _ in data], float)
        gradients = [gradient(weights, *one) for weights, one in zip(own, data, strict=True)]
        if is_loop and step >= start_step:
            factors = replicas * counts / max(counts.sum(), 1)
            gradients = [[f * g for g in one] for f, one in zip(factors, gradients, strict=True)]
        if step < start_step:
            gradients = [mean(gradients, counts / max(counts.sum(), 1))] * replicas
        for replica in range(replicas):
            slots[replica] = [momentum * m - rate * g for m, g in zip(slots[replica], gradients[replica], strict=True)]
            own[replica] = [x + m for x, m in zip(own[replica], slots[replica], strict=True)]
        if step < start_step:
            common = own[0]
            continue
        rows, since = rows + (1 if is_loop else counts), since + 1
        if since < every(step):
            continue
        if overlap:
            if late:
                sent, following, common, velocity, _ = late
                changes = zip(own, following, sent, strict=True)
                own = [[x + (n - s) for x, n, s in zip(*change, strict=True)] for change in changes]
            # Without rows in a round, the shares are equal.
            late = None
            late = (list(own), *meet(own, common, velocity), shares())
        else:
            own, common, velocity = meet(own, common, velocity)
        if average_slots:
            slots = [mean(slots, shares())] * replicas
        rows, since = np.zeros(replicas), 0
    return Trained(own, slots, common if outer == "elastic" else mean(own, shares()))
