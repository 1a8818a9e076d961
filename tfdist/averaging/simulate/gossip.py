"""Decentralised SGD: each worker averages its weights with those of a few peers, and there is no meeting of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist.averaging.mixing import Mixing
from tfdist.averaging.simulate.optimizers import Optimizer, Slots
from tfdist.averaging.simulate.stacked import (
    AllWorkers,
    Arrays,
    Gradient,
    copies,
    evaluate,
    float64,
    one_gradient,
)


@dataclass(frozen=True)
class GossipResult:
    """The workers after some steps of decentralised SGD.

    Args:
        weights: the weights; the first axis of each array is that of the workers.
        slots: the slots of the optimizers, with the same axis.
        estimates: what the peers know of the weights of each worker, with `choco_sgd`; otherwise empty.

    Example:
        >>> result = GossipResult([np.array([1.0, 3.0])], {}, [])
        >>> result.seen, result.spread
        ([np.float64(2.0)], 1.0)
    """

    weights: Arrays
    slots: Slots
    estimates: Arrays

    @property
    def seen(self) -> Arrays:
        """The mean of the weights over the workers."""
        return [array.mean(axis=0) for array in self.weights]

    @property
    def spread(self) -> float:
        """The root of the mean squared distance of a worker from the mean of all."""
        squares = [((array - array.mean(axis=0)) ** 2).sum() / len(array) for array in self.weights]
        return float(np.sqrt(sum(squares)))


def d_psgd(
    gradient: Gradient | AllWorkers,
    weights: Sequence[np.ndarray],
    *,
    steps: int,
    optimizer: Optimizer,
    mixing: Mixing,
) -> GossipResult:
    """Trains with D-PSGD: x_i = sum over j of W[i, j] x_j, plus the update that the optimizer makes from the old x_i.

    Args:
        gradient: a function of worker, step and weights, or `AllWorkers`. A worker without rows has gradients of 0.
        weights: the weights at the start, the same on all workers.
        steps: the number of steps.
        optimizer: the optimizer of each worker, which keeps its own slots.
        mixing: the mixing matrices, and the number of workers.

    Source: Lian et al., arXiv:1705.09056, algorithm 1.

    Example:
        >>> from tfdist.averaging import ring, simulate
        >>> def gradient(worker, step, weights):
        ...     return [weights[0] - worker], 1
        >>> result = d_psgd(gradient, [np.array(1.0)], steps=50, optimizer=simulate.SGD(0.5), mixing=ring(3))
        >>> result.weights[0].round(4)
        array([0.6667, 1.    , 1.3333])
    """
    return _last(d_psgd_steps(gradient, weights, steps=steps, optimizer=optimizer, mixing=mixing), weights, mixing)


def d_psgd_steps(
    gradient: Gradient | AllWorkers,
    weights: Sequence[np.ndarray],
    *,
    steps: int,
    optimizer: Optimizer,
    mixing: Mixing,
) -> Iterator[GossipResult]:
    """Yields the state after each step of `d_psgd`; the reader may stop early."""
    x = copies(weights, mixing.workers)
    slots = optimizer.slots(x)
    for step in range(steps):
        gradients, _ = evaluate(gradient, workers=mixing.workers, step=step, weights=x)
        updated, slots = optimizer.update(x, slots, gradients, step=step)
        x = [mixing.mixed(old, step=step) + (new - old) for old, new in zip(x, updated, strict=True)]
        yield GossipResult(x, slots, [])


def choco_sgd(
    gradient: Gradient | AllWorkers,
    weights: Sequence[np.ndarray],
    *,
    steps: int,
    optimizer: Optimizer,
    mixing: Mixing,
    compress: Callable[[np.ndarray], np.ndarray],
    gamma: float,
    known_start: bool = False,
) -> GossipResult:
    """Trains with CHOCO-SGD: the workers send compressed differences from what their peers know of them.

    Each worker updates x_i with its optimizer, sends q_i = compress(x_i - e_i), and adds q_i to the estimate e_i that
    all peers have of x_i. Then x_i = x_i + gamma * (sum over j of W[i, j] (e_j - e_i)).

    Args:
        gradient: a function of worker, step and weights, or `AllWorkers`. A worker without rows has gradients of 0.
        weights: the weights at the start, the same on all workers.
        steps: the number of steps.
        optimizer: the optimizer of each worker, which keeps its own slots.
        mixing: the mixing matrices, and the number of workers.
        compress: returns what arrives of an array; see `top_k`. It receives each array of each worker.
        gamma: the step size of the averaging, above 0 and at most 1.
        known_start: whether the estimates begin with the weights at the start, which all workers know, instead of 0 as
            in the paper.

    Source: Koloskova, Stich and Jaggi, arXiv:1902.00340, algorithm 2.

    Example:
        >>> from tfdist.averaging import ring, simulate
        >>> def gradient(worker, step, weights):
        ...     return [weights[0] - [worker, 1.0]], 1
        >>> result = choco_sgd(
        ...     gradient,
        ...     [np.zeros(2)],
        ...     steps=300,
        ...     optimizer=simulate.SGD(0.05),
        ...     mixing=ring(3),
        ...     compress=top_k(0.5),
        ...     gamma=0.5,
        ... )
        >>> result.seen[0].round(3)
        array([1., 1.])
    """
    if not 0 < gamma <= 1:
        raise ValueError(f"expected gamma above 0, and at most 1, received {gamma!r}.")
    x = copies(weights, mixing.workers)
    slots = optimizer.slots(x)
    estimates = [array.copy() if known_start else np.zeros_like(array) for array in x]
    for step in range(steps):
        gradients, _ = evaluate(gradient, workers=mixing.workers, step=step, weights=x)
        x, slots = optimizer.update(x, slots, gradients, step=step)
        for place, (own, estimate) in enumerate(zip(x, estimates, strict=True)):
            sent = np.stack([compress(difference) for difference in own - estimate])
            known = estimate + sent
            estimates[place] = known
            # The rows of the matrix sum to 1.
            x[place] = own + gamma * (mixing.mixed(known, step=step) - known)
    return GossipResult(x, slots, estimates)


def ad_psgd(
    gradient: Gradient,
    weights: Sequence[np.ndarray],
    *,
    workers: int,
    order: Iterable[tuple[int, int]],
    optimizer: Optimizer,
) -> GossipResult:
    """Trains with AD-PSGD: a worker that has computed its gradient averages its weights with those of one peer.

    At each event (worker, peer) of the order, the worker has the gradients for the weights that it had after its last
    event. Both take the mean of their present weights, in which peers may have changed the worker's weights meanwhile.
    Then the worker alone adds the update of its optimizer.

    Args:
        gradient: a function of worker, step and weights; the step is the number of earlier events of the worker.
        weights: the weights at the start, the same on all workers.
        workers: the number of workers.
        order: the events, as pairs of a worker and its peer.
        optimizer: the optimizer of each worker, which keeps its own slots.

    Source: Lian et al., "Asynchronous Decentralized Parallel SGD", arXiv:1710.06952, algorithm 1.

    Example:
        >>> from tfdist.averaging import simulate
        >>> def gradient(worker, step, weights):
        ...     return [weights[0]], 1
        >>> order = [(0, 1), (1, 0)]
        >>> ad_psgd(gradient, [np.array(4.0)], workers=2, order=order, optimizer=simulate.SGD(0.5)).weights
        [array([3., 1.])]
    """
    if workers < 2:
        raise ValueError(f"expected at least 2 workers, received {workers!r}.")
    x = [float64(weights) for _ in range(workers)]
    read = list(x)
    slots = [optimizer.slots(one) for one in x]
    done = [0] * workers
    for worker, peer in order:
        if not (0 <= worker < workers and 0 <= peer < workers and worker != peer):
            raise ValueError(f"expected two different workers from 0 to {workers - 1}, received {(worker, peer)}.")
        found, rows = gradient(worker, done[worker], read[worker])
        gradients = [one_gradient(found, rows, place=place, like=old) for place, old in enumerate(read[worker])]
        updated, slots[worker] = optimizer.update(read[worker], slots[worker], gradients, step=done[worker])
        mean = [(own + other) / 2 for own, other in zip(x[worker], x[peer], strict=True)]
        x[peer] = mean
        x[worker] = [m + (new - old) for m, new, old in zip(mean, updated, read[worker], strict=True)]
        read[worker] = x[worker]
        done[worker] += 1
    names = slots[0].keys()
    return GossipResult(_stacked(x), {name: _stacked([one[name] for one in slots]) for name in names}, [])


def top_k(part: float) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that keeps the largest entries of an array by absolute value, and sets the others to 0.

    Args:
        part: the part of the entries that stay, above 0 and at most 1; at least one stays. Of equal entries, the
            earlier ones stay.

    Example:
        >>> top_k(0.5)(np.array([1.0, -3.0, 2.0, 0.5]))
        array([ 0., -3.,  2.,  0.])
    """
    if not 0 < part <= 1:
        raise ValueError(f"expected a part above 0, and at most 1, received {part!r}.")

    def compress(array: np.ndarray) -> np.ndarray:
        flat = np.ravel(array)
        kept = np.argsort(-np.abs(flat), kind="stable")[: max(1, int(part * flat.size))]
        sparse = np.zeros_like(flat)
        sparse[kept] = flat[kept]
        return sparse.reshape(array.shape)

    return compress


def _stacked(arrays: Sequence[Arrays]) -> Arrays:
    return [np.stack(of_workers) for of_workers in zip(*arrays, strict=True)]


def _last(states: Iterator[GossipResult], weights: Sequence[np.ndarray], mixing: Mixing) -> GossipResult:
    last = GossipResult(copies(weights, mixing.workers), {}, [])
    for state in states:
        last = state
    return last
