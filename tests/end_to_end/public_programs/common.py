"""The parts that every program has: the scope, the batches, and the numbers that are compared."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import tensorflow as tf

# The last of five batches has 11 rows, so that two replicas get 6 and 5.
ROWS, BATCH = 75, 16


def scope(strategy: Any) -> Any:
    """Returns the scope of a strategy; without a strategy, an empty context."""
    return strategy.scope() if strategy else contextlib.nullcontext()


def batches(data: Any, batch: int = BATCH) -> tf.data.Dataset:
    """Returns batches of arrays. Workers split each batch, so that the global batches are those of one device."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return tf.data.Dataset.from_tensor_slices(data).batch(batch).with_options(options)


def results(model: Any, history: Any = None, evaluated: Any = None, **others: Any) -> dict[str, Any]:
    """Returns the numbers of a program as JSON types.

    Args:
        model: a model, or several models in a list.
        history: what `fit` returns.
        evaluated: what `evaluate` returns.
        **others: further numbers.
    """
    models = model if isinstance(model, list) else [model]
    return {
        "weights": [_plain(weight) for one in models for weight in one.get_weights()],
        "history": _plain(history.history) if history else {},
        "evaluated": _plain(evaluated),
        **{name: _plain(value) for name, value in others.items()},
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if value is None else np.asarray(value, dtype=float).tolist()
