"""Checks whether a program that is started again reads its data in the same order."""

from __future__ import annotations

from typing import Any

from tfdist._log import get_logger
from tfdist.keras_compat.resume.data_of_fit import datasets_of, operations_of

# Operations that change the order of records, in the functions of a dataset.
_ORDER = {"RandomShuffle"}


def check_order(data: Any) -> None:
    """Raises an error if the order of the data is drawn without a seed.

    Random numbers that change the records, but not their order, are only mentioned in the log.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.

    Raises:
        ValueError: if the order is drawn without a seed.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.checkpoint.order_of_data import check_order
        >>> check_order(tf.data.Dataset.range(8).shuffle(8, seed=1))
    """
    order: list[str] = []
    values: list[str] = []
    for dataset in datasets_of(data):
        if _is_zero(getattr(dataset, "_seed", None)) and _is_zero(getattr(dataset, "_seed2", None)):
            order.append(type(dataset).__name__.strip("_"))
        for operation in operations_of(dataset):
            seeds = [operation.get_attr(a.name) for a in operation.op_def.attr if a.name in ("seed", "seed2")]
            if len(seeds) == 2 and operation.op_def.is_stateful and not any(seeds):
                (order if operation.type in _ORDER else values).append(operation.type)
    if order:
        raise ValueError(
            f"expected data whose order is the same when the program starts again, received {order[0]} without a seed; "
            "call keras.utils.set_random_seed(1) at the beginning of the program, or give shuffle a seed."
        )
    if values:
        get_logger().warning(
            "the data has random operations without a seed (%s), which differ when the program starts again; call "
            "keras.utils.set_random_seed(1) at the beginning of the program",
            ", ".join(sorted(set(values))),
        )


def _is_zero(seed: Any) -> bool:
    return seed is not None and int(seed) == 0
