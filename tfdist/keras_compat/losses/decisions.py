"""What a step decides by a loss or by gradients, such as to skip an update that is not finite, as on one device.

A replica that decides by its own loss may decide otherwise than the others. The decision is computed again from the
value of the global batch: that of gradients and of functions of sums over rows, and the mean of means over rows.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.computed_again import again
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
    exact = value_of_global_batch(decision, batch)
    if exact is not None:
        return exact
    if decision.dtype.is_floating and decision.shape.rank == 0:
        if not batch.is_replica_mean and is_part(decision, batch):
            return sum_gradients([decision])[0]
        if batch.is_replica_mean and is_mean_over_rows(decision, batch):
            return sum_gradients([batch.times_share(decision)])[0]
    if decision.op.type not in (*_COMPARISONS, *_LOGIC):
        return decision
    operands = list(decision.op.inputs)
    new = [of_global_batch(one, batch) for one in operands]
    if all(one is before for one, before in zip(new, operands, strict=True)):
        return decision
    return again(decision.op, new)[decision.value_index]
