"""Mends int(), float() and complex() of a variable that has a value on each replica, which raise TypeError.

Callbacks call `int(optimizer.iterations)` and `float(optimizer.learning_rate)`. On one device they work. A variable of
Keras 3 passes the call on to the variable of TensorFlow, so that one mend of TensorFlow's class serves all releases of
Keras. The number is that of `numpy()`: on several workers, all workers together read a variable whose value is a sum
over replicas, such as the total of a metric.

bool() works in stock TensorFlow, and range(variable) fails on one device too: neither is changed.

Source: DistributedVariable in TensorFlow's distribute/values.py. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.mend import Mend

_NUMBERS: dict[str, Callable[[Any], Any]] = {"__int__": int, "__float__": float, "__complex__": complex}


def _variable_class() -> Any:
    from tensorflow.python.distribute.values import DistributedVariable

    return DistributedVariable


def _defect_present() -> bool:
    return any(not hasattr(_variable_class(), name) for name in _NUMBERS)


def _reading(number: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(self: Any) -> Any:
        return number(self.numpy())

    return read


def _apply() -> None:
    variable_class = _variable_class()
    for name, number in _NUMBERS.items():
        if not hasattr(variable_class, name):
            setattr(variable_class, name, _reading(number))


MEND = Mend(
    name="numbers_not_read_from_replicas",
    issue="not reported",
    # A variable on central storage or on a parameter server has only one copy, of which TensorFlow reads the number.
    strategies=("mirrored", "multi_worker_mirrored", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`int(optimizer.iterations)` and `float(optimizer.learning_rate)` raise TypeError",
    without_row="the rows read variables with numpy(); tests/keras_compat_unit/test_numbers_of_variables.py shows it",
)
