"""Mends Keras 2's learning-rate schedules on central storage, which fail because replicas cannot assign the rate.

The variable of the learning rate has no aggregation, so that TensorFlow refuses to assign the variable on a replica.
Every replica computes the same rate from the step. With the mend the rate of the first replica is assigned.

Source: _BaseOptimizer._compute_current_learning_rate in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    source = inspect.getsource(tf.keras.optimizers.Optimizer._compute_current_learning_rate)
    return "self._current_learning_rate.assign(" in source and "aggregation" not in source


def _with_aggregation(stock: Callable) -> Callable:
    def compute_current_learning_rate(self: Any) -> Any:
        rate = getattr(self, "_current_learning_rate", None)
        if rate is not None and type(rate).__name__ == "AggregatingVariable":
            rate._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return stock(self)

    return compute_current_learning_rate


def _apply() -> None:
    patch_method(tf.keras.optimizers.Optimizer, "_compute_current_learning_rate", _with_aggregation)


MEND = Mend(
    name="learning_rate_without_aggregation",
    issue="not reported",
    strategies=("central_storage",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="learning-rate schedules fail",
    rows=("schedule of the learning rate",),
)
