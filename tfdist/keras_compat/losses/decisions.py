"""What a step decides by a loss or by gradients, such as to skip an update that is not finite, as on one device.

A replica that decides by its own loss may decide otherwise than the others. The decision is computed again from the
value of the global batch: that of gradients and of functions of sums over rows, and the mean of means over rows.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.computed_again import TooManyOperations, again, in_order
from tfdist.keras_compat.losses.division import is_part
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import is_mean_over_rows
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch

# Operations of a decision that do not belong to the number by which it is made.
_COMPARISONS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "IsFinite", "IsInf", "IsNan")
_LOGIC = ("LogicalAnd", "LogicalOr", "LogicalNot", "All", "Any", "Identity", "Cast", "Pack", "Reshape")


def of_global_batch(decision: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns a decision of this replica, made by the losses and gradients of the global batch; in replica context.

    Args:
        decision: boolean scalar of the graph of the step.
        batch: the global batch of the step.

    Returns:
        The decision itself, if it is not seen to be made by losses or gradients.
    """
    new: dict[int, tf.Tensor] = {}

    def is_source(tensor: tf.Tensor) -> bool:
        if id(tensor) not in new:
            found = _global_value(tensor, batch)
            if found is None and tensor.op.type in (*_COMPARISONS, *_LOGIC):
                return False
            new[id(tensor)] = tensor if found is None else found
        return True

    try:
        order = list(in_order([decision], is_source))
    except TooManyOperations:
        return decision
    for operation in order:
        operands = [new[id(one)] for one in operation.inputs]
        is_same = all(one is before for one, before in zip(operands, operation.inputs, strict=True))
        outputs = operation.outputs if is_same else again(operation, operands)
        new.update(zip(map(id, operation.outputs), outputs, strict=True))
    return new[id(decision)]


def _global_value(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor | None:
    """Returns a loss, or what is computed from gradients, for the global batch; None for other tensors."""
    exact = value_of_global_batch(value, batch)
    if exact is not None or not value.dtype.is_floating or value.shape.rank != 0:
        return exact
    if batch.is_replica_mean:
        return sum_gradients([batch.times_share(value)])[0] if is_mean_over_rows(value, batch) else None
    return sum_gradients([value])[0] if is_part(value, batch) else None
