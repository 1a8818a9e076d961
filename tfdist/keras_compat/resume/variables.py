"""The variables that a training changes, by names that are the same after a restart of the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint.graph_view import ObjectGraphView

from tfdist.allreduce.per_replica import PerReplica


def training_variables(model: Any) -> dict[str, tf.Variable]:
    """Returns the variables of a model, its metrics, its optimizers, and of other objects that the model refers to.

    Variables that do not exist yet, such as the residuals of a compression before the first step, are missing.

    Args:
        model: a compiled Keras model.
    """
    found: dict[str, tf.Variable] = {}
    known: set[int] = set()

    def add(kind: str, variables: Iterable[Any]) -> None:
        for number, variable in enumerate(variables):
            own = _of_tensorflow(variable)
            if own is not None and id(own) not in known:
                known.add(id(own))
                found[f"{kind}/{number}/{_last_name(variable)}"] = own

    add("model", model.variables)
    add("metrics", getattr(model, "metrics_variables", None) or [v for m in model.metrics for v in m.variables])
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        variables = optimizer.variables
        add("optimizer", variables() if callable(variables) else variables)
    trackables, paths = ObjectGraphView(model)._breadth_first_traversal()
    for trackable in trackables:
        own = _of_tensorflow(trackable)
        if own is not None and id(own) not in known:
            known.add(id(own))
            found["others/" + "/".join(str(getattr(part, "name", part)) for part in paths[trackable])] = own
    return found


def _of_tensorflow(value: Any) -> tf.Variable | None:
    """Returns the variable of TensorFlow behind a variable of Keras or a PerReplica, or None for other values."""
    if isinstance(value, PerReplica):
        value = value._variable
    kinds = (tf.Variable, tf.distribute.DistributedValues)
    if not isinstance(value, kinds):
        # The `value` of Keras 3's variables may be a tensor of another dtype.
        value = getattr(value, "_value", None)
    return value if isinstance(value, kinds) and value.dtype not in (tf.resource, tf.variant, tf.string) else None


def _last_name(variable: Any) -> str:
    # Keras numbers the names of layers in the order in which a process makes them, such as dense_3.
    return str(variable.name).split("/")[-1].split(":")[0]
