"""Collectives over all replicas, for losses that need the rows of the global batch."""

from __future__ import annotations

from typing import Any

import tfdist._needs_tensorflow  # noqa: F401  # isort: skip
import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch

__all__ = ["all_gather"]


def all_gather(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all replicas, in the order of the replicas; gradients flow back to each replica's own rows.

    A loss that every replica computes from the gathered rows, such as a contrastive loss, has the value and the
    gradients of one device. Call the function in replica context, on every replica; on one device it returns its
    argument.

    Args:
        tensor: float tensor of one or more axes. The replicas' tensors may differ in the first axis only.

    Raises:
        ValueError: if it is called outside of a replica, or for a tensor without axes.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> strategy = tfdist.create_strategy("one_device")
        >>> def similarities(own):
        ...     rows = tfdist.collectives.all_gather(own)
        ...     return tf.matmul(rows, rows, transpose_b=True)
        >>> strategy.run(similarities, args=(tf.constant([[1.0], [2.0]]),)).numpy().tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """
    tensor = tf.convert_to_tensor(tensor)
    context = tf.distribute.get_replica_context()
    if context is None:
        raise ValueError("expected a call of all_gather in replica context, received one outside of strategy.run.")
    if tensor.shape.rank == 0:
        raise ValueError("expected a tensor with rows for all_gather, received a scalar; add an axis.")
    if context.num_replicas_in_sync == 1:
        return tensor
    batch = current_batch()
    rows = tf.shape(tensor)[0]
    # TensorFlow gathers on the device of the tensor, which only an operation such as tf.identity has.
    rows_of_replicas = context.all_gather(tf.identity(rows[tf.newaxis]), axis=0)
    before = tf.reduce_sum(rows_of_replicas[: context.replica_id_in_sync_group])
    by_share = batch is not None and batch.is_replica_mean

    @tf.custom_gradient
    def gathered(own: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # The loss of the global batch is the sum over replicas of share * loss, and the gradient of this replica
            # is multiplied by its share later. Without shares the losses are added up.
            share = batch.share(upstream.dtype) if by_share and batch is not None else tf.ones([], upstream.dtype)
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.math.multiply_no_nan(upstream, share))
            return tf.math.divide_no_nan(total[before : before + rows], share)

        # One collective after the other, in the same order on every replica.
        with tf.control_dependencies([rows_of_replicas]):
            return context.all_gather(tf.identity(own), axis=0), gradient

    return gathered(tensor)
