"""The logs that a train_step or test_step of one's own returns, for the global batch.

A scalar that is no result of a metric is the mean over the replica's rows, so that the mean over replicas is weighted
by rows (see losses/rule.py). A result of a metric is computed from the sums of the metric's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.keras_compat.losses.weighting import part_of_global

# A result of a metric is a few operations away from the variables of the metric.
_OPERATIONS = 200


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs in which the entries of nested dicts stand beside the others, as Keras shows them.

    The result of a model's compiled metrics, which `model.metrics` lists as one metric, is such a dict.

    Args:
        logs: the logs of one replica.
    """
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= flat_logs(value) if isinstance(value, Mapping) else {name: value}
    return flat


def scalars_of(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of the logs that are scalars.

    Args:
        logs: the logs of one replica.
    """
    return [name for name, value in logs.items() if tf.convert_to_tensor(value).shape.rank == 0]


def parts_of_scalars(logs: Mapping[str, Any]) -> list[tf.Tensor]:
    """Returns tensors whose sums over replicas are the scalars of the global batch; called in replica context.

    Args:
        logs: the logs of this replica, within a step.
    """
    batch = current_batch()
    scalars = [tf.convert_to_tensor(logs[name]) for name in scalars_of(logs)]
    scalars = [value if value.dtype.is_floating else tf.cast(value, tf.float32) for value in scalars]
    if batch is None:
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        return [value / replicas for value in scalars]
    return [part_of_global(value, batch) for value in scalars]


def results_in(logs: Mapping[str, Any], model: Any, results: Mapping[str, Any]) -> list[str]:
    """Returns the names of the logs that are results of the metric of the same name; called in replica context.

    Args:
        logs: the logs of this replica.
        model: the model.
        results: the results of its metrics on this replica, by name.
    """
    return [
        name
        for metric in model.metrics
        for name in _names_of(metric)
        if name in results and name in logs and _is_result(logs[name], metric, results[name])
    ]


def _names_of(metric: Any) -> list[str]:
    """Returns the names of a metric's results. The compiled metrics are one metric with several results."""
    result = metric.result()
    return list(result) if isinstance(result, Mapping) else [metric.name]


def _is_result(value: Any, metric: Any, result: Any) -> bool:
    """Returns whether a log was computed from the variables of a metric; if it is eager, whether it is the result."""
    if not hasattr(value, "graph"):
        return not hasattr(result, "graph") and np.array_equal(value, result, equal_nan=True)
    handles = {
        id(component.handle)
        for variable in metric.variables
        for component in getattr(variable.value, "values", (variable.value,))
    }
    captured = {id(internal): id(external) for external, internal in value.graph.captures}
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < _OPERATIONS:
        tensor = waiting.pop()
        if captured.get(id(tensor)) in handles:
            return True
        if id(tensor) not in seen:
            seen.add(id(tensor))
            waiting.extend(tensor.op.inputs)
    return False
