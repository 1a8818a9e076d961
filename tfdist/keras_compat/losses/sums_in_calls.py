"""Values that a loss or metric returns and that are functions of sums over rows, for the global batch."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.following_rows.followed import Followed
from tfdist.keras_compat.losses.functions_of_sums import function_of_sums
from tfdist.keras_compat.losses.global_batch import current_batch, temporarily, works_alone

_local = threading.local()


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a loss or a metric.

    Attributes:
        arguments: the tensors that it gets, whose first axis is that of rows.
        values: the values of the global batch, by the id of the value of the replica; None for those that have none.
    """

    arguments: tuple[Any, ...]
    values: dict[int, tuple[Any, tf.Tensor | None]] = dataclasses.field(default_factory=dict)


def current_call() -> Call | None:
    """Returns the call of a loss or metric on this thread, within which its arguments are known; else None."""
    return getattr(_local, "call", None)


def value_of_global_batch(value: Any) -> tf.Tensor | None:
    """Returns a scalar that is a function of sums over rows for the global batch, the same on all replicas.

    Args:
        value: what the loss or metric that is called has returned on this replica.

    Returns:
        None if the value is no such function, or if that is not known, so that it counts with the replica's rows.
    """
    call, batch = current_call(), current_batch()
    if call is None or batch is None or not batch.is_replica_mean or works_alone():
        return None
    if id(value) not in call.values:
        rows = {id(one): Followed(axis=0) for one in call.arguments}
        is_known = all(_has_rows(one, value) for one in call.arguments)
        function = function_of_sums(value, lambda tensor: rows.get(id(tensor)), batch) if is_known else None
        # The value is kept so that no other tensor gets its id.
        call.values[id(value)] = (value, function.compute() if function else None)
    return call.values[id(value)][1]


def with_arguments(stock: Callable) -> Callable:
    """Returns a method of a loss or metric, `method(self, y_true, y_pred, ...)`, that makes its arguments known."""

    @functools.wraps(stock)
    def method(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
        with temporarily(_local, call=Call(tuple(tf.nest.flatten((y_true, y_pred))))):
            return stock(self, y_true, y_pred, *args, **kwargs)

    return method


def _has_rows(argument: Any, value: Any) -> bool:
    is_tensor = (
        tf.is_tensor(argument) and hasattr(argument, "graph") and argument.graph is getattr(value, "graph", None)
    )
    # A value of shape (1,) is the loss of a model.
    return is_tensor and bool(argument.shape.rank) and argument.shape[0] != 1
