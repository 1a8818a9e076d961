"""Mends Keras 2's constraints on weights on central storage, which fail because replicas cannot assign weights.

Weights have no aggregation, so that TensorFlow refuses to assign `constraint(weight)` on a replica. All replicas
compute the same value, because there is only one copy of the weight. With the mend the value of the first replica is
assigned.

Source: Optimizer.apply_gradients in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    module = inspect.getmodule(tf.keras.optimizers.Optimizer)
    return module is not None and "variable.assign(variable.constraint(variable))" in inspect.getsource(module)


def _with_aggregation(stock: Callable) -> Callable:
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        for _, variable in pairs:
            if type(variable).__name__ == "AggregatingVariable" and variable.constraint is not None:
                variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return stock(self, pairs, *args, **kwargs)

    return apply_gradients


def _apply() -> None:
    patch_method(tf.keras.optimizers.Optimizer, "apply_gradients", _with_aggregation)


MEND = Mend(
    name="constraint_without_aggregation",
    issue="not reported",
    strategies=("central_storage",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="constraints on weights fail",
    rows=("constraints on weights",),
)
