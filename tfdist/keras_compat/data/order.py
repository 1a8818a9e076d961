"""Finds what in data is random without a seed of the program: the order of its records, and their values."""

from __future__ import annotations

from typing import Any

from tfdist.keras_compat.resume.data_of_fit import datasets_of, operations_of

# Operations that change the order of records, in the functions of a dataset.
_ORDER = {"RandomShuffle"}
DRAWN = "_tfdist_drawn"
"""Attribute of a dataset of seeds that the workers have drawn for one call of fit."""


def order_without_seed(data: Any) -> list[str]:
    """Returns the names of the datasets and operations that change the order of records without a seed.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.data.order import order_without_seed
        >>> order_without_seed(tf.data.Dataset.range(8).shuffle(8, seed=1))
        []
    """
    found = []
    for dataset in datasets_of(data):
        if _is_zero(getattr(dataset, "_seed", None)) and _is_zero(getattr(dataset, "_seed2", None)):
            found.append(type(dataset).__name__.strip("_"))
        found += [name for name in _random_operations(dataset) if name in _ORDER]
    return found


def values_without_seed(data: Any) -> list[str]:
    """Returns the names of the random operations without a seed that change records, but not their order.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.
    """
    return [name for dataset in datasets_of(data) for name in _random_operations(dataset) if name not in _ORDER]


def is_drawn(data: Any) -> bool:
    """Returns whether the workers have drawn the order of data for one call of fit.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.
    """
    return any(hasattr(dataset, DRAWN) for dataset in datasets_of(data))


def _random_operations(dataset: Any) -> list[str]:
    found = []
    for operation in operations_of(dataset):
        seeds = [operation.get_attr(a.name) for a in operation.op_def.attr if a.name in ("seed", "seed2")]
        if len(seeds) == 2 and operation.op_def.is_stateful and not any(seeds):
            found.append(operation.type)
    return found


def _is_zero(seed: Any) -> bool:
    return seed is not None and int(seed) == 0
