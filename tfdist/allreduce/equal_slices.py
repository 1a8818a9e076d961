"""Adds up the slices of rows that every replica gives in the same order, such as the positions of a sequence.

The sum of IndexedSlices over replicas is their concatenation. On one device, rows that do not depend on the batch are
looked up once in a step, however many rows the batch has; after the concatenation there is a slice of them from each
replica. The sum of the slices is right, but an optimizer that clips or squares slices before it adds them up, as the
optimizers of Keras 3 do, computes another step than on one device.

Rows that depend on the batch, such as words, stay apart: one device has a slice for each of them, too.
"""

from __future__ import annotations

import tensorflow as tf

# These operations read the shape of the batch, not its values.
_SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")


def add_up_equal_slices(own: tf.IndexedSlices, total: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices with the same sum; if all replicas give the same rows, only the first replica's are not zero.

    The number of slices stays the same, so that XLA can compile the step. Called in replica context.

    Args:
        own: slices of this replica.
        total: slices of all replicas, one replica after another.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.allreduce.equal_slices import add_up_equal_slices
        >>> slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([0, 1]), tf.constant([5, 1]))
        >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        >>> strategy.run(lambda: add_up_equal_slices(slices, slices)).values.numpy().tolist()
        [[1.0], [2.0]]
    """
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    if replicas == 1 or depends_on_batch(own.indices):
        return total
    values, indices = total.values, total.indices
    size = indices.shape[0] if indices.shape[0] is not None else tf.shape(indices)[0]
    each = tf.maximum(size // replicas, 1) if tf.is_tensor(size) else max(size // replicas, 1)
    position = tf.range(size) % each
    are_equal = tf.logical_and(size % replicas == 0, tf.reduce_all(indices == tf.gather(indices, position)))
    sums = tf.math.unsorted_segment_sum(values, position, each)
    moved = tf.concat([sums, tf.zeros_like(values)], axis=0)[:size]
    return tf.IndexedSlices(tf.where(are_equal, moved, values), indices, total.dense_shape)


def depends_on_batch(tensor: tf.Tensor) -> bool:
    """Returns whether a tensor may depend on the values of a replica's batch, and not only on their shapes.

    The result is False for an eager tensor, of which it is not known.

    Args:
        tensor: any tensor.
    """
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or not hasattr(one, "graph"):
            continue
        seen.add(id(one))
        operation = one.op
        if operation.type in _SHAPES or (operation.type == "ReadVariableOp" and one.dtype.is_integer):
            continue
        if operation.type == "Placeholder":
            captured = [external for external, internal in one.graph.captures if internal is one]
            if not captured:
                return True
            waiting.extend(captured)
        elif operation.op_def.is_stateful or operation.type.startswith("Stateless"):
            return True
        else:
            waiting.extend(operation.inputs)
    return False
