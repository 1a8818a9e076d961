"""The logs that a train_step or test_step of one's own returns, for the global batch.

A scalar that is no result of a metric is the mean over the replica's rows, so that the mean over replicas is weighted
by rows (see losses/rule.py). A result of a metric is computed from the sums of the metric's variables (see
results_of_metrics.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.keras_compat.losses.weighting import part_of_global


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


def nested_like(logs: Mapping[str, Any], flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of flat logs in the dicts in which they were nested.

    Keras reports the logs of a step, unless their outermost names are those of the model's metrics.

    Args:
        logs: nested logs.
        flat: what `flat_logs` returns for them, with other values.
    """
    return {
        name: nested_like(value, flat) if isinstance(value, Mapping) else flat[name] for name, value in logs.items()
    }


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
