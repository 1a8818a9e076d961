"""Mends assignments to Keras 2's variables in a train_step or a metric on central storage.

Central storage has only one copy of a variable, to which all replicas assign. TensorFlow refuses the assignment to a
weight, which has no aggregation; with the mend, the value of the first replica is assigned, because a read under the
strategy mirrored returns this value too. To the variable of a metric, TensorFlow assigns the sum of the replicas'
values; `variable.assign(variable + x)` would add the old value once for each replica. With the mend, the replicas add
their differences to the old value.

For Keras 3 see counter_update_is_read_then_assign.

Source: AggregatingVariable in TensorFlow's distribute/ps_values.py. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.keras_compat.mend import Mend


def _variable_class() -> Any:
    from tensorflow.python.distribute.ps_values import AggregatingVariable

    return AggregatingVariable


def _defect_present() -> bool:
    return "aggregation_error_msg" in _variable_class()._assign_func.__code__.co_names


def _with_aggregation(stock: Callable) -> Callable:
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if current_batch() is None or tf.distribute.in_cross_replica_context():
            return stock(self, value, *args, **kwargs)
        if self._aggregation == tf.VariableAggregation.SUM:
            return self.assign_add(tf.cast(value, self.dtype) - self.read_value(), *args, **kwargs)
        if self._aggregation == tf.VariableAggregation.NONE:
            self._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return stock(self, value, *args, **kwargs)

    return assign


def _apply() -> None:
    variable_class = _variable_class()
    variable_class.assign = _with_aggregation(variable_class.assign)


MEND = Mend(
    name="assigned_without_aggregation",
    issue="not reported",
    strategies=("central_storage",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a `train_step` cannot assign weights; a metric that assigns its variables counts old values several times",
    rows=(
        "moving average of the weights in a teacher network",
        "a metric of one's own with assign and assign_add",
    ),
)
