"""Divides the batch of train_on_batch and test_on_batch among the replicas.

Stock Keras 3 gives the whole batch to every replica. A mean over rows is then right, but a loss with reduction="sum"
and a metric that counts rows come out once for each replica.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def batch_of_replicas(data: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a batch of distributed values, each of which has a part of the rows for each replica.

    Data with sparse or distributed tensors is returned as it is.

    Args:
        data: arrays or tensors whose first axis is the rows of the global batch, which is the same on all workers;
            nested, may contain None.
        strategy: the strategy of the model.
    """
    flat = tf.nest.flatten(data)
    if any(isinstance(value, (tf.SparseTensor, tf.distribute.DistributedValues)) for value in flat):
        return data
    return tf.nest.pack_sequence_as(data, [None if value is None else _divided(value, strategy) for value in flat])


def _divided(value: Any, strategy: tf.distribute.Strategy) -> Any:
    values = value if isinstance(value, tf.RaggedTensor) else tf.convert_to_tensor(value)
    rows = int(values.nrows() if isinstance(values, tf.RaggedTensor) else values.shape[0])

    def part(context: Any) -> Any:
        replica, replicas = context.replica_id_in_sync_group, context.num_replicas_in_sync
        return values[_first_row(replica, replicas, rows) : _first_row(replica + 1, replicas, rows)]

    return strategy.experimental_distribute_values_from_function(part)


def _first_row(replica: int, replicas: int, rows: int) -> int:
    """Returns the first row of a replica. If rows are left over, the first replicas have one row more than the last.

    >>> [_first_row(replica, 4, 6) for replica in range(5)]
    [0, 2, 4, 5, 6]
    """
    return replica * (rows // replicas) + min(replica, rows % replicas)
