"""Mends Keras 3's `Variable.assign_add`, which reads the variable and then assigns the sum.

On a parameter server another worker may write between the read and the assignment, and its addition is lost: after 60
steps of two workers, `optimizer.iterations` was 46. With the aggregation "sum", TensorFlow sums the values that the
replicas assign, so that the old value is added once for each replica: a counter of rows grows exponentially. The mend
uses TensorFlow's own assign_add, which is one atomic operation.

The mend also covers two further cases. Metrics and layers that call `variable.assign(variable + x)` themselves get the
sum of the replicas' additions. And on central storage, variables without aggregation (seeds, averages of weights),
which replicas cannot write in stock TensorFlow, take the value that the first replica assigns.

Source: upstream issue keras-team/keras#18624.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.reached import outermost, reached


def _defect_present() -> bool:
    from keras.src.backend.common import KerasVariable
    from keras.src.backend.tensorflow.core import Variable

    return Variable.assign_add is KerasVariable.assign_add and "assign" in KerasVariable.assign_add.__code__.co_names


def _atomic(name: str, stock: Callable) -> Callable:
    from keras.src.backend import in_stateless_scope
    from tensorflow.python.distribute.values import SyncOnReadVariable

    def update(self: Any, value: Any) -> Any:
        # Each replica has a part of its own of a metric's state. A variable on a parameter server has the same
        # synchronization, but is one for all workers.
        if in_stateless_scope() or isinstance(self._value, SyncOnReadVariable):
            return stock(self, value)
        value = self._convert_to_tensor(value, dtype=self._dtype)
        if not tf.TensorShape(self.shape).is_compatible_with(value.shape):
            return stock(self, value)
        getattr(self._value, name)(tf.cast(value, self._value.dtype))
        return self._value

    update.__name__ = name
    return update


def _reads(value: Any, variable: Any) -> bool:
    """Returns whether a value is computed from the variable. Of an eager value it is likely, unless it is 0."""
    if not hasattr(value, "graph"):
        return bool(tf.reduce_any(tf.not_equal(value, tf.zeros_like(value))))
    parts = getattr(variable, "values", None) or [getattr(variable, "_v", variable)]
    handles = {id(part.handle) for part in parts}
    # The read itself may be within a function, into which the handle goes.
    return any(one.dtype == tf.resource and id(outermost(one)) in handles for one in reached(value))


def _summed(stock: Callable) -> Callable:
    def direct_assign(self: Any, value: Any) -> None:
        # TensorFlow writes the sum of the assigned values. Of values to which the old one was added, each replica adds
        # its difference instead.
        variable = self._value
        kind = type(variable).__name__
        if kind not in ("AggregatingVariable", "MirroredVariable") or tf.distribute.in_cross_replica_context():
            stock(self, value)
        elif self.aggregation == "sum" and _reads(value, variable):
            variable.assign_add(tf.cast(value, variable.dtype) - tf.convert_to_tensor(variable))
        else:
            if self.aggregation == "none" and kind == "AggregatingVariable":
                # TensorFlow refuses this assignment on a replica. The first replica's value is assigned, because a read
                # under the strategy mirrored returns this value too.
                variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
            stock(self, value)

    return direct_assign


def _apply() -> None:
    from keras.src.backend.tensorflow.core import Variable

    Variable._direct_assign = _summed(Variable._direct_assign)

    for name in ("assign_add", "assign_sub"):
        setattr(Variable, name, _atomic(name, getattr(Variable, name)))


MEND = Mend(
    name="counter_update_is_read_then_assign",
    issue="keras-team/keras#18624",
    strategies=("parameter_server", "central_storage", "mirrored", "multi_worker_mirrored"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="counters are read, then assigned: counts are lost or doubled, also those of variables with the aggregation "
    "sum; on central_storage, variables without aggregation cannot be assigned",
    rows=("AUC, Recall and other metrics with state", "exponential moving average of weights, at the end"),
)
