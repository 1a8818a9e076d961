"""Arrays of all workers, stacked along a first axis, and the gradients of all workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = list[np.ndarray]
"""The weights of a model, or one gradient of each."""

Gradient = Callable[[int, int, Arrays], tuple[Sequence[np.ndarray], float]]
"""A function of worker, step and weights, which returns gradients of the mean loss over the worker's rows of the step,
and the number of these rows. With 0 rows the gradients count as 0."""


@dataclass(frozen=True)
class AllWorkers:
    """A gradient function that computes the gradients of all workers at once, which is faster with many workers.

    Args:
        function: receives the step and the weights of all workers, whose first axis is that of the workers. Returns
            gradients of the same shapes, and an array with the number of rows of each worker.

    Example:
        >>> from tfdist.averaging import simulate
        >>> slopes = AllWorkers(lambda step, weights: ([2 * weights[0]], np.ones(3)))
        >>> rounds = simulate.Rounds(every=1)
        >>> result = simulate.local_sgd(
        ...     slopes, [np.array([1.0])], workers=3, steps=1, optimizer=simulate.SGD(0.25), rounds=rounds
        ... )
        >>> result.weights[0].ravel()
        array([0.5, 0.5, 0.5])
    """

    function: Callable[[int, Arrays], tuple[Arrays, np.ndarray]]


def float64(arrays: Sequence[np.ndarray]) -> Arrays:
    """Returns copies of arrays as float64."""
    return [np.array(array, dtype=np.float64) for array in arrays]


def copies(arrays: Sequence[np.ndarray], workers: int) -> Arrays:
    """Returns arrays that hold the same values for each worker, along a new first axis."""
    return [np.repeat(np.asarray(array, dtype=np.float64)[None], workers, axis=0) for array in arrays]


def row_of(stacked: Sequence[np.ndarray], worker: int) -> Arrays:
    """Returns the arrays of one worker."""
    return [array[worker] for array in stacked]


def evaluate(gradient: Gradient | AllWorkers, *, workers: int, step: int, weights: Arrays) -> tuple[Arrays, np.ndarray]:
    """Returns the gradients of all workers, 0 where a worker has no rows, and the numbers of rows."""
    if isinstance(gradient, AllWorkers):
        gradients, counts = gradient.function(step, weights)
        rows = np.asarray(counts, dtype=np.float64)
    else:
        found = [gradient(worker, step, row_of(weights, worker)) for worker in range(workers)]
        rows = np.array([count for _, count in found], dtype=np.float64)
        gradients = [
            np.stack([one_gradient(arrays, count, place=place, like=old[0]) for arrays, count in found])
            for place, old in enumerate(weights)
        ]
    if rows.shape != (workers,) or not (rows >= 0).all():
        raise ValueError(f"expected a number of rows of 0 or more for each of {workers} workers, received {rows}.")
    if not rows.all():
        gradients = [np.where(_per_worker(rows, array) > 0, array, 0.0) for array in gradients]
    return gradients, rows


def one_gradient(arrays: Sequence[np.ndarray], rows: float, *, place: int, like: np.ndarray) -> np.ndarray:
    """Returns a gradient of one worker; zeros if the worker has no rows, whatever the function returned."""
    if not rows:
        return np.zeros_like(like)
    array = np.asarray(arrays[place], dtype=np.float64)
    if array.shape != like.shape:
        raise ValueError(f"expected a gradient of the shape {like.shape}, received {array.shape}.")
    return array


def shares(rows: np.ndarray) -> np.ndarray:
    """Returns the part of all rows that each worker has; equal parts if there are no rows."""
    total = rows.sum()
    return rows / total if total > 0 else np.full(len(rows), 1 / len(rows))


def weighted(weights: np.ndarray, stacked: Sequence[np.ndarray]) -> Arrays:
    """Returns the sum over workers of each worker's weight and arrays."""
    return [np.tensordot(weights, array, axes=1) for array in stacked]


def _per_worker(rows: np.ndarray, array: np.ndarray) -> np.ndarray:
    return rows.reshape((-1, *[1] * (array.ndim - 1)))
