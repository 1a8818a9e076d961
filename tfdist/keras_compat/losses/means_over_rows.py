"""Finds means over the rows of a replica in the graph of a step.

A mean over all rows is the average of the replicas' means, weighted by their rows. So is a linear function of means.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.divided_sums import counts_rows
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.reached import reached

# Operations through which a mean stays one, up to a factor, or has another shape.
_LINEAR = ("Identity", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "RealDiv", "DivNoNan", "Mul", "MulNoNan")
_SHAPED = ("Squeeze", "Reshape", "ExpandDims")
# A standard deviation, as of BatchNormalization; a value where a condition holds.
_NEARLY = ("Sqrt", "SelectV2")
_KNOWN = ("Const", "ReadVariableOp")
_DIVISIONS = ("RealDiv", "DivNoNan")


def is_mean_over_rows(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether a scalar is a mean over the rows of a replica, or a linear function of such means and others.

    Args:
        value: tensor of this replica.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(value) or value.shape.rank != 0:
        return False
    means = {id(mean) for mean in batch.means}
    return any(id(one) in means or _is_mean(one, batch) for one in reached(value, _terms))


def are_means_over_rows(values: Any, batch: GlobalBatch) -> bool:
    """Returns whether each entry of a vector or matrix is a mean over the rows of a replica, such as one for a feature.

    Args:
        values: tensor of this replica, of rank 1 or more.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(values) or not values.shape.rank:
        return False

    def terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
        if _is_mean(tensor, batch):
            return []
        # A factor or a term that is broadcast does not decide what the axes are.
        is_shaped = tensor.op.type in _SHAPED
        return [one for one in _terms(tensor) if is_shaped or one.shape.rank == tensor.shape.rank]

    leaves = [one for one in reached(values, terms) if not hasattr(one, "graph") or not list(terms(one))]
    found = [_is_mean(one, batch) for one in leaves]
    return any(found) and all(is_mean or _is_known(one) for is_mean, one in zip(found, leaves, strict=True))


def is_made_of_means(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether a tensor of any shape has a mean over the rows of a replica among its terms.

    Args:
        value: tensor of this replica.
        batch: the global batch of the step.
    """

    def terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
        return tensor.op.inputs if tensor.op.type in _NEARLY else _terms(tensor)

    return tf.is_tensor(value) and any(_is_mean(one, batch) for one in reached(value, terms))


def has_rows(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether the first axis of a tensor may be that of the rows of a replica.

    Args:
        value: tensor of this replica, or something else, which has no rows.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(value) or hasattr(value, "assign") or not value.shape.rank:
        return False
    return value.shape[0] in (None, batch.static_rows)


def _terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    if tensor.op.type in _SHAPED:
        return tensor.op.inputs[:1]
    return tensor.op.inputs if tensor.op.type in _LINEAR else ()


def _is_mean(value: tf.Tensor, batch: GlobalBatch) -> bool:
    if not hasattr(value, "graph") or not value.op.inputs:
        return False
    operand = value.op.inputs[0]
    if value.op.type == "Mean":
        return _is_over_rows(value.op, batch)
    if value.op.type in _DIVISIONS and counts_rows(value.op.inputs[1], batch.static_rows):
        return any(_is_sum(one, batch) for one in reached(operand, _terms))
    return value.op.type == "Sum" and are_means_over_rows(operand, batch)


def _is_sum(value: tf.Tensor, batch: GlobalBatch) -> bool:
    if not hasattr(value, "graph"):
        return False
    if value.op.type == "L2Loss":
        return has_rows(value.op.inputs[0], batch)
    return value.op.type == "Sum" and _is_over_rows(value.op, batch)


def _is_over_rows(operation: tf.Operation, batch: GlobalBatch) -> bool:
    """Returns whether the axes of a mean or a sum include that of the rows."""
    operand, given = operation.inputs
    if not has_rows(operand, batch):
        return False
    axes = tf.get_static_value(given)
    return axes is None or 0 in axes.ravel() % operand.shape.rank


def _is_known(value: tf.Tensor) -> bool:
    return hasattr(value, "graph") and value.op.type in _KNOWN
