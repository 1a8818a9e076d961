"""Mends Keras 2's BatchNormalization on a replica that has no rows.

With `synchronized=True` the statistics are those of the global batch, and yet a replica without rows does not update
its copy; averaged with the others it is wrong. On central storage an ordinary layer takes the mean of nothing, NaN.
Source: BatchNormalizationBase._support_zero_size_input in Keras 2; we know of no upstream issue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def base_class() -> Any:
    """Returns the class in which Keras 2's batch normalization is written."""
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
)
