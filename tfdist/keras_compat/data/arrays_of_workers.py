"""Compares the arrays that the workers give to fit, evaluate and predict, and says in the log if they differ.

Each worker takes its part of every batch, so that all of them need the same arrays in the same order. Arrays that a
program makes, shuffles or divides by chance differ unless it sets a seed; then an epoch has some rows twice and others
never, and nothing else shows it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.workers import count_workers, exchange, worker_index

_ROWS = 16
# Hosts with other processors may compute the same arrays with other roundings.
_LEAST_ROUNDING = 1e-10
_said: list[bool] = []


def say_if_arrays_differ(strategy: tf.distribute.Strategy | None, data: Any, *, called: str = "arrays") -> None:
    """Waits for all workers, compares some rows of their arrays, and warns once in the log if they differ.

    Args:
        strategy: the strategy of the model; nothing is done if it has one worker.
        data: nested arrays; other data are left out.
        called: what the line of the log calls them.
    """
    if strategy is None or count_workers(strategy) == 1:
        return
    rows = exchange(strategy, fingerprint(data), dtype="float64", to="call fit, evaluate or predict")
    others = [number for number, row in enumerate(rows) if not are_alike(rows[0], row)]
    if others and not _said and not worker_index(strategy):
        _said.append(True)
        get_logger().warning(
            "the %s of worker %s differ from those of worker 0, although each worker takes its part of every "
            "batch, so that some rows are used twice and others never; give all workers the same data, in the same "
            "order: call keras.utils.set_random_seed(1) at the beginning of the program",
            called,
            ", ".join(map(str, others)),
        )


def fingerprint(data: Any) -> tuple[float, float, float]:
    """Returns numbers that are the same, up to rounding, for the same arrays: a checksum, a sum, and its rounding.

    Args:
        data: nested arrays; of other data only the types count.

    Example:
        >>> rows = np.arange(12.0).reshape(6, 2)
        >>> [are_alike(fingerprint(rows), fingerprint(others)) for others in (rows + 1e-12, rows[::-1])]
        [True, False]
    """
    check, total, bound = 0, 0.0, 0.0
    for leaf in tf.nest.flatten(data):
        rows = _some_rows(leaf)
        check = zlib.crc32(f"{type(leaf).__name__} {getattr(leaf, 'shape', None)} {rows.dtype.kind}".encode(), check)
        if rows.dtype.kind in "fc":
            values = np.nan_to_num(np.abs(rows) if rows.dtype.kind == "c" else rows.astype("float64")).ravel()
            values = np.clip(values, -1e100, 1e100)
            # Weights that tell rows in another order.
            total += float(values @ np.random.default_rng(0).normal(size=len(values)))
            bound += max(4.0 * np.finfo(rows.dtype).eps, _LEAST_ROUNDING) * float(np.linalg.norm(values))
        elif rows.dtype.kind == "O":
            check = zlib.crc32("\n".join(map(str, rows.ravel())).encode(), check)
        else:
            check = zlib.crc32(np.ascontiguousarray(rows).tobytes(), check)
    return float(check), total, bound


def are_alike(first: Sequence[float], second: Sequence[float]) -> bool:
    """Returns whether two fingerprints are those of the same arrays."""
    return first[0] == second[0] and abs(first[1] - second[1]) <= max(first[2], second[2])


def _some_rows(leaf: Any) -> np.ndarray:
    """Returns some rows, evenly spaced over the array; none of what is no array."""
    shape = getattr(leaf, "shape", None)
    if not isinstance(leaf, np.ndarray | tf.Tensor) or not shape or not shape[0]:
        return np.zeros([0])
    indices = np.unique(np.linspace(0, int(shape[0]) - 1, _ROWS).astype("int64"))
    return np.asarray(leaf[indices] if isinstance(leaf, np.ndarray) else tf.gather(leaf, indices))
