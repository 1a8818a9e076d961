"""Losses of which Keras or TensorFlow adds up the entries, for example one entry for each row.

`add_loss` of a vector and `tape.gradient` of a vector give the sum over the entries. If the entries belong to rows, the
sum over the global batch is the sum of the replicas' sums, whatever their numbers of rows. Other entries, such as a
mean over the rows for each feature, have the weight of a replica's mean.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import are_means_over_rows, has_rows


def part_of_sum(values: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns the sum of a tensor's entries, as a part whose sum over replicas is the value of the global batch.

    Args:
        values: float tensor of rank 1 or more of this replica.
        batch: the global batch of the step.
    """
    # A mean over no rows is NaN.
    return tf.math.multiply_no_nan(tf.reduce_sum(values), _weight(values, batch))


def seeds_of_sums(target: Any, sources: Any, output_gradients: Any, batch: GlobalBatch) -> Any:
    """Returns the output gradients with which a gradient of sums over rows is that of a mean over the replica's rows.

    Args:
        target: the tensors that are differentiated, nested or not.
        sources: the tensors or variables with respect to which `target` is differentiated. Only a gradient with respect
            to variables is summed over replicas, so that others need no other output gradients.
        output_gradients: None, or one tensor or None for each target.
        batch: the global batch of the step.
    """
    targets = tf.nest.flatten(target)
    is_summed = [tf.is_tensor(one) and one.dtype.is_floating and bool(one.shape.rank) for one in targets]
    is_trained = any(hasattr(one, "assign") for one in tf.nest.flatten(sources))
    if not any(is_summed) or not is_trained or not batch.is_replica_mean:
        return output_gradients
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    seeds = [
        _seed(one, seed, batch) if summed else _ones(one, seed)
        for one, seed, summed in zip(targets, given, is_summed, strict=True)
    ]
    return tf.nest.pack_sequence_as(target, seeds)


def _ones(target: Any, given: Any) -> Any:
    # TensorFlow takes None only where all output gradients are missing.
    return tf.ones_like(target) if given is None and tf.is_tensor(target) else given


def _seed(values: tf.Tensor, given: Any, batch: GlobalBatch) -> tf.Tensor:
    seed = tf.ones_like(values) if given is None else tf.convert_to_tensor(given)
    return seed * tf.math.divide_no_nan(_weight(values, batch), batch.share(values.dtype))


def _weight(values: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns the weight of a replica's sum: 1 if its entries belong to rows, else the replica's share of the rows."""
    if has_rows(values, batch) and not are_means_over_rows(values, batch):
        return tf.ones([], values.dtype)
    return batch.share(values.dtype)
