"""Makes sure that a program that is started again reads its data in the same order."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np

from tfdist._log import get_logger
from tfdist.keras_compat.data.order import is_drawn, order_without_seed, values_without_seed


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
    order = order_without_seed(data) or (["RandomShuffle"] if is_drawn(data) else [])
    if order:
        raise ValueError(
            f"expected data whose order is the same when the program starts again, received {order[0]} without a seed; "
            "call keras.utils.set_random_seed(1) at the beginning of the program, or give shuffle a seed."
        )
    values = values_without_seed(data)
    if values:
        get_logger().warning(
            "the data has random operations without a seed (%s), which differ when the program starts again; call "
            "keras.utils.set_random_seed(1) at the beginning of the program",
            ", ".join(sorted(set(values))),
        )


def state_of_shuffling() -> str:
    """Returns the state of the module `random`, with which fit shuffles the batches of a PyDataset or Sequence.

    Example:
        >>> import random
        >>> from tfdist.checkpoint.order_of_data import restore_shuffling, state_of_shuffling
        >>> state, number = state_of_shuffling(), random.random()
        >>> restore_shuffling(state)
        >>> random.random() == number
        True
    """
    return base64.b64encode(np.asarray(random.getstate()[1], "<u4").tobytes()).decode()


def restore_shuffling(state: str) -> None:
    """Makes fit shuffle in the order of an earlier process.

    Args:
        state: what `state_of_shuffling` returned there.
    """
    numbers = np.frombuffer(base64.b64decode(state), "<u4")
    random.setstate((random.getstate()[0], tuple(numbers.tolist()), None))
