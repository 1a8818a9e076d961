"""Sums gradients over all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

from tfdist.allreduce.deadline import within_deadline
from tfdist.allreduce.equal_slices import add_up_equal_slices

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


def is_dense(gradient: Gradient) -> bool:
    """Returns whether a gradient is a dense tensor: neither None nor IndexedSlices, which tf.is_tensor accepts."""
    return gradient is not None and not isinstance(gradient, tf.IndexedSlices)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether every element of all these floating-point tensors is a finite number."""
    # Not 0 * x, which TensorFlow may simplify to zeros.
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])


def sum_gradients(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Returns each gradient's sum over all replicas of all workers; called in replica context.

    As in TensorFlow's all_reduce, a tensor object that all replicas of a process share counts once for the process.

    Args:
        gradients: dense tensors, IndexedSlices, or None if a variable has no influence on the loss; for the same
            variables in the same order on every replica.

    Returns:
        The sums in the same order; None stays None.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.allreduce import sum_gradients
        >>> strategy = tf.distribute.OneDeviceStrategy("CPU:0")
        >>> float(strategy.run(lambda: sum_gradients([tf.constant(3.0), None])[0]))
        3.0
    """
    context = tf.distribute.get_replica_context()
    summed: list[Gradient] = list(gradients)
    # TensorFlow concatenates the tensors of a call, which therefore have one dtype. It gathers slices instead.
    groups: dict[tuple[str, bool], list[int]] = {}
    for i, gradient in enumerate(gradients):
        if gradient is not None:
            groups.setdefault((gradient.dtype.name, isinstance(gradient, tf.IndexedSlices)), []).append(i)
    with within_deadline(gradients, summed):
        for chosen in groups.values():
            totals = context.all_reduce(tf.distribute.ReduceOp.SUM, [gradients[i] for i in chosen])
            for i, total in zip(chosen, totals, strict=True):
                is_sparse = isinstance(total, tf.IndexedSlices)
                summed[i] = add_up_equal_slices(gradients[i], total) if is_sparse else total
    return summed
