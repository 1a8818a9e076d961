"""Divides the batch of train_on_batch and test_on_batch among the replicas.

Stock Keras 3 gives the whole batch to every replica. A mean over rows is then right, but a loss with reduction="sum"
and a metric that counts rows come out once for each replica.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import PerReplicaSpec


def batch_of_replicas(data: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a batch of distributed values, each of which has a part of the rows for each replica.

    Data with distributed tensors is returned as it is.

    Args:
        data: arrays or tensors whose first axis is the rows of the global batch, which is the same on all workers;
            nested, may contain None.
        strategy: the strategy of the model.
    """
    flat = tf.nest.flatten(data)
    if any(isinstance(value, tf.distribute.DistributedValues) for value in flat):
        return data
    return tf.nest.pack_sequence_as(data, [None if value is None else _divided(value, strategy) for value in flat])


def spec_of_batch(data: Any) -> Any:
    """Returns the specification of a batch of replicas, for batches of any number of rows.

    With the numbers of rows of the first batch, the step of another batch would be traced for each replica apart, with
    known numbers of rows on some replicas only.

    Args:
        data: what batch_of_replicas returns, or an iterator, which is returned as it is.
    """

    def of_any_rows(tensor: tf.Tensor) -> tf.TensorSpec:
        return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

    def spec(value: Any) -> Any:
        if isinstance(value, tf.Tensor):
            # Of a worker with one replica.
            return of_any_rows(value)
        parts = getattr(value, "values", ())
        if not isinstance(value, tf.distribute.DistributedValues) or not all(
            isinstance(one, tf.Tensor) for one in parts
        ):
            return value
        return PerReplicaSpec(*map(of_any_rows, parts))

    return tf.nest.map_structure(spec, data)


def _divided(value: Any, strategy: tf.distribute.Strategy) -> Any:
    is_sparse, is_ragged = isinstance(value, tf.SparseTensor), isinstance(value, tf.RaggedTensor)
    values = value if is_sparse or is_ragged else tf.convert_to_tensor(value)
    rows = int(values.nrows() if is_ragged else values.shape[0])

    def part(context: Any) -> Any:
        replica, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
        begin, end = (_first_row(number, replicas, rows) for number in (replica, replica + 1))
        if is_sparse:
            return tf.sparse.slice(values, [begin] + [0] * (values.shape.rank - 1), [end - begin, *values.shape[1:]])
        return values[begin:end]

    return strategy.experimental_distribute_values_from_function(part)


def _first_row(replica: int, replicas: int, rows: int) -> int:
    """Returns the first row of a replica. If rows are left over, the first replicas have one row more than the last.

    >>> [_first_row(replica, 4, 6) for replica in range(5)]
    [0, 2, 4, 5, 6]
    """
    return replica * (rows // replicas) + min(replica, rows % replicas)
