"""GlobalBatch: the number of rows of one replica and of all replicas, which determine the weight of losses."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_local = threading.local()


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """The number of rows in a step, of one replica and of all replicas together.

    Attributes:
        rows: float32 scalar, number of rows of this replica.
        total: float32 scalar, number of rows of all replicas of all workers.
    """

    rows: tf.Tensor
    total: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """Float32 scalar: the fraction of all rows that this replica has; 0 if no replica has rows."""
        return tf.math.divide_no_nan(self.rows, self.total)


def rows_of(data: Any) -> tf.Tensor:
    """Returns the number of rows of the first tensor of a replica's batch, a float32 scalar."""
    first = next(value for value in tf.nest.flatten(data) if value is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.float32)
    shape = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first)
    return tf.cast(shape[0], tf.float32)


def sum_over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value over all replicas, with gradients stopped; call it in replica context."""
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))
    return tf.stop_gradient(total)


@contextlib.contextmanager
def global_batch(data: Any) -> Iterator[GlobalBatch]:
    """Makes `current_batch` return the global batch, within the context and on this thread; yields the global batch.

    Args:
        data: a replica's batch; its first tensor has as many rows as the batch.
    """
    rows = rows_of(data)
    batch = GlobalBatch(rows, sum_over_replicas(rows))
    with temporarily(_local, batch=batch):
        yield batch


def current_batch() -> GlobalBatch | None:
    """Returns the global batch of this replica's thread; None if the global batch is not known."""
    return getattr(_local, "batch", None)


@contextlib.contextmanager
def temporarily(local: threading.local, **values: Any) -> Iterator[None]:
    """Sets attributes of a thread-local object within the context, and restores their earlier values at its end.

    Args:
        local: the thread-local object.
        **values: the attributes and their values; an attribute that did not exist before is None afterwards.
    """
    before = {name: getattr(local, name, None) for name in values}
    vars(local).update(values)
    try:
        yield
    finally:
        vars(local).update(before)
