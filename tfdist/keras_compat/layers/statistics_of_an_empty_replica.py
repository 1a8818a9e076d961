"""Mends Keras 2's BatchNormalization on a replica that has no rows.

With `synchronized=True` the statistics are those of the global batch, but a replica without rows does not update its
copy, so that the average over replicas is wrong. On central storage, a layer that is not synchronized takes the mean of
no rows, which is NaN. With the mend, a replica without rows updates its copy if the layer is synchronized; otherwise
the copy stays unchanged.

Source: BatchNormalizationBase._support_zero_size_input in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def base_class() -> Any:
    """Returns the base class that implements batch normalization in Keras 2."""
    return tf.keras.layers.BatchNormalization.__mro__[1]


def _defect_present() -> bool:
    return "synchronized" not in inspect.getsource(base_class()._support_zero_size_input)


def _support(stock: Callable) -> Callable:
    def support_zero_size_input(self: Any) -> bool:
        if self.synchronized:
            return False
        return stock(self) or tf.distribute.get_strategy().num_replicas_in_sync > 1

    return support_zero_size_input


def _apply() -> None:
    base = base_class()
    base._support_zero_size_input = _support(base._support_zero_size_input)


MEND = Mend(
    name="statistics_of_an_empty_replica",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a replica without rows does not update the running statistics of BatchNormalization, or the statistics "
    "become NaN",
    rows=(
        "BatchNormalization where a replica gets no rows",
        "BatchNormalization(synchronized=True) where a replica gets no rows",
    ),
)
