"""How much of the global batch a replica has: what the losses of its rows count for."""

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
    """The batch of a step, seen from one replica.

    Attributes:
        rows: float32 scalar, rows of this replica.
        total: float32 scalar, rows of all replicas of all workers.
    """

    rows: tf.Tensor
    total: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """Float32 scalar: which part of the rows this replica has; 0 if nobody has any."""
        return tf.math.divide_no_nan(self.rows, self.total)


def rows_of(data: Any) -> tf.Tensor:
    """Returns the number of rows of the first tensor of a replica's batch, a float32 scalar."""
    first = next(value for value in tf.nest.flatten(data) if value is not None)
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.float32)
    shape = first.dense_shape if isinstance(first, tf.SparseTensor) else tf.shape(first)
    return tf.cast(shape[0], tf.float32)


def over_replicas(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of a value over all replicas; to be called in replica context."""
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))
    return tf.stop_gradient(total)


@contextlib.contextmanager
def global_batch(data: Any) -> Iterator[GlobalBatch]:
    """Lets losses within, on this replica's thread, know the global batch.

    Args:
        data: a replica's batch; its first tensor has as many rows as the batch.
    """
    rows = rows_of(data)
    batch = GlobalBatch(rows, over_replicas(rows))
    before = current_batch()
    _local.batch = batch
    try:
        yield batch
    finally:
        _local.batch = before


def current_batch() -> GlobalBatch | None:
    """Returns the global batch that this replica's thread is working on, if it is known."""
    return getattr(_local, "batch", None)
