"""Mixing matrices of decentralised SGD: with which weights a worker averages its weights with those of its peers.

In D-PSGD, worker i replaces its weights x_i with the sum over j of W[i, j] x_j. The mean over the workers stays the
same if W is doubly stochastic: no entry is negative, and each row and each column sums to 1. The larger the spectral
gap of W, the sooner the workers agree.

In all graphs of this module each worker has the same offsets to its peers: worker i receives from the workers
i + offset modulo the number of workers. Such a matrix (a circulant) is doubly stochastic whatever its offsets are, and
takes little memory with 1,024 workers.

Source: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms?", arXiv:1705.09056; for the
exponential graphs Assran et al., "Stochastic Gradient Push", arXiv:1811.10792, and Ying et al., "Exponential Graph is
Provably Efficient for Decentralized Deep Training", arXiv:2110.13363.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-12
"""How far the sum of a row or a column may be from 1, and an entry from that of the transposed matrix."""


@dataclass(frozen=True)
class Mixing:
    """Mixing matrices that the steps use in turn.

    `ring`, `exponential`, `one_peer_exponential` and `complete` make them.

    Args:
        workers: the number of workers.
        rounds: the matrices, each as pairs of an offset and its weight: worker i receives from the workers i + offset.
            Offset 0 is the worker itself.

    Example:
        >>> mixing = Mixing(workers=3, rounds=(((0, 0.5), (1, 0.5)),))
        >>> mixing.matrix(0)
        array([[0.5, 0.5, 0. ],
               [0. , 0.5, 0.5],
               [0.5, 0. , 0.5]])
        >>> mixing.receives_from(worker=2, step=0), mixing.sends_to(worker=2, step=0)
        ((0,), (1,))
    """

    workers: int
    rounds: tuple[tuple[tuple[int, float], ...], ...]

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"expected at least 1 worker, received {self.workers!r}.")
        if not self.rounds:
            raise ValueError("expected at least one mixing matrix, received none.")
        for weights in self.rounds:
            offsets = [offset for offset, _ in weights]
            if len(set(offsets)) < len(offsets) or not all(0 <= offset < self.workers for offset in offsets):
                raise ValueError(f"expected different offsets from 0 to {self.workers - 1}, received {offsets}.")
            numbers = [weight for _, weight in weights]
            if not all(weight >= 0 for weight in numbers) or abs(sum(numbers) - 1) > TOLERANCE:
                raise ValueError(f"expected weights of 0 or more that sum to 1, received {numbers}.")

    def weights(self, step: int) -> tuple[tuple[int, float], ...]:
        """Returns the offsets and weights of a step, which is counted from 0."""
        return self.rounds[step % len(self.rounds)]

    def matrix(self, step: int = 0) -> np.ndarray:
        """Returns the matrix of a step; row i has the weights with which worker i receives."""
        matrix = np.zeros((self.workers, self.workers))
        for offset, weight in self.weights(step):
            matrix[np.arange(self.workers), (np.arange(self.workers) + offset) % self.workers] = weight
        return matrix

    def receives_from(self, *, worker: int, step: int) -> tuple[int, ...]:
        """Returns the other workers whose weights a worker receives in a step."""
        return tuple((worker + offset) % self.workers for offset, _ in self.weights(step) if offset)

    def sends_to(self, *, worker: int, step: int) -> tuple[int, ...]:
        """Returns the other workers that receive the weights of a worker in a step."""
        return tuple((worker - offset) % self.workers for offset, _ in self.weights(step) if offset)

    def mixed(self, values: np.ndarray, *, step: int) -> np.ndarray:
        """Returns the product of the matrix of a step and values whose first axis is that of the workers."""
        if len(values) != self.workers:
            raise ValueError(f"expected values of {self.workers} workers, received those of {len(values)}.")
        total = np.zeros_like(values, dtype=np.float64)
        for offset, weight in self.weights(step):
            total += weight * np.roll(values, -offset, axis=0)
        return total


def ring(workers: int) -> Mixing:
    """Returns the mixing of a ring: each worker averages its weights with those of its two neighbours, with 1/3 each.

    Two workers have one neighbour each, and weights of 1/2.

    Example:
        >>> ring(4).receives_from(worker=0, step=0)
        (1, 3)
    """
    return _equal(workers, sorted({0, 1 % workers, workers - 1} if workers > 0 else {0}))


def exponential(workers: int) -> Mixing:
    """Returns the mixing of the static exponential graph: offsets 1, 2, 4, ... with equal weights.

    The matrix is not symmetric with more than 3 workers.

    Example:
        >>> exponential(8).receives_from(worker=0, step=0)
        (1, 2, 4)
        >>> spectral_gap(exponential(8))
        0.5
    """
    return _equal(workers, [0, *_powers(workers)])


def one_peer_exponential(workers: int) -> Mixing:
    """Returns the time-varying exponential graph: each step has one of the offsets 1, 2, 4, ..., with weights of 1/2.

    A worker sends its weights once a step. If the number of workers is a power of 2, all of them have the exact mean
    after log2(workers) steps.

    Example:
        >>> mixing = one_peer_exponential(8)
        >>> [mixing.receives_from(worker=0, step=step) for step in range(4)]
        [(1,), (2,), (4,), (1,)]
        >>> spectral_gap(mixing)
        1.0
    """
    powers = _powers(workers)
    return Mixing(workers, tuple(((0, 0.5), (power, 0.5)) for power in powers) or (((0, 1.0),),))


def complete(workers: int) -> Mixing:
    """Returns the mixing of the complete graph: after a step all workers have the mean of all.

    Example:
        >>> float(complete(4).matrix().min()), spectral_gap(complete(4))
        (0.25, 1.0)
    """
    return _equal(workers, list(range(workers)))


def check_doubly_stochastic(matrix: np.ndarray) -> None:
    """Raises an error if a matrix is not doubly stochastic.

    Args:
        matrix: a square matrix.

    Raises:
        ValueError: the matrix is not square, an entry is negative, or a row or a column does not sum to 1.

    Example:
        >>> check_doubly_stochastic(ring(5).matrix())
        >>> check_doubly_stochastic(np.array([[0.5, 0.5], [1.0, 0.0]]))
        Traceback (most recent call last):
        ...
        ValueError: expected each column of the mixing matrix to sum to 1, received 1.5 for column 0.
    """
    _check_square(matrix)
    if not (matrix >= 0).all():
        raise ValueError(f"expected no negative entry of the mixing matrix, received {float(matrix.min())}.")
    for axis, name in ((1, "row"), (0, "column")):
        sums = matrix.sum(axis=axis)
        worst = int(np.abs(sums - 1).argmax())
        if not abs(sums[worst] - 1) <= TOLERANCE:
            received = f"received {float(sums[worst])} for {name} {worst}"
            raise ValueError(f"expected each {name} of the mixing matrix to sum to 1, {received}.")


def is_symmetric(mixing: Mixing) -> bool:
    """Returns whether all matrices of a mixing are symmetric: workers that receive from each other use the same weight.

    Example:
        >>> is_symmetric(ring(5)), is_symmetric(exponential(5))
        (True, False)
    """
    for weights in mixing.rounds:
        by_offset = dict(weights)
        for offset, weight in weights:
            if abs(weight - by_offset.get(-offset % mixing.workers, 0.0)) > TOLERANCE:
                return False
    return True


def spectral_gap(mixing: Mixing | np.ndarray) -> float:
    """Returns 1 minus the second largest absolute value of an eigenvalue.

    Args:
        mixing: mixing matrices, of which the gap of the product of one turn through all of them is returned; or one
            doubly stochastic matrix.

    Returns:
        A number from 0 (the workers never agree) to 1 (they agree after one turn). One turn multiplies the distance of
        the workers from their mean by at most 1 minus the gap, if the matrix is that of a `Mixing` or is symmetric.

    Example:
        >>> round(spectral_gap(np.array([[0.75, 0.25], [0.25, 0.75]])), 12)
        0.5
    """
    if isinstance(mixing, Mixing):
        # The discrete Fourier transform has the eigenvalues of a circulant. Circulants have the same eigenvectors, so
        # that the eigenvalues of a product are products of eigenvalues.
        values = np.ones(mixing.workers, dtype=np.complex128)
        for weights in mixing.rounds:
            row = np.zeros(mixing.workers)
            for offset, weight in weights:
                row[offset] = weight
            values *= np.fft.fft(row)
        others = np.abs(values[1:])
    else:
        check_doubly_stochastic(mixing)
        others = np.sort(np.abs(np.linalg.eigvals(mixing)))[:-1]
    return 1.0 - float(others.max(initial=0.0))


def _check_square(matrix: np.ndarray) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ValueError(f"expected a square mixing matrix, received the shape {matrix.shape}.")


def _powers(workers: int) -> list[int]:
    return [2**power for power in range(max(workers - 1, 0).bit_length())]


def _equal(workers: int, offsets: list[int]) -> Mixing:
    return Mixing(workers, (tuple((offset, 1 / len(offsets)) for offset in offsets),))
