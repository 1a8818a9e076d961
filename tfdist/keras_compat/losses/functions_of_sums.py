"""Scalars that are a function of sums over rows, computed from the sums of all replicas.

Many programs have a loss or a metric that is no mean over rows: the sum of a loss over unmasked tokens, divided by
their number; a Dice coefficient; the root of a mean square; a correlation. Its value for the global batch is no mean of
the replicas' values. It is the same function of the sums over all replicas, which are all-reduced here. The function is
then computed again from the first of them on, by the operations of the program.

Only functions are computed again whose operations are all known (see following_rows), and whose value does not grow
with the number of rows: a sum that is divided by nothing, or by a constant, may be a mean.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.computed_again import TooManyOperations, again, in_order
from tfdist.keras_compat.losses.following_rows.entries import is_sum_over_rows
from tfdist.keras_compat.losses.following_rows.follow import follow
from tfdist.keras_compat.losses.following_rows.followed import SHARED, Followed, NotFollowed
from tfdist.keras_compat.losses.global_batch import GlobalBatch


def function_of_sums(
    value: Any, source: Callable[[tf.Tensor], Followed | None], batch: GlobalBatch
) -> FunctionOfSums | None:
    """Returns how a scalar of this replica is computed from sums over rows.

    Args:
        value: the scalar, of a graph.
        source: returns what is known of a tensor that is not followed to what it is computed from, else None.
        batch: the global batch of the step.

    Returns:
        None if the value is no such function, if that is not known, or if it is a linear function of means over rows,
        whose value for the global batch is the mean of the replicas' values.
    """
    if not hasattr(value, "graph") or value.shape.rank != 0 or not value.dtype.is_floating:
        return None
    if value.graph is not batch.graph:
        # Replicas cannot add up within a tf.function, a loop or a branch of their own of the step.
        return None
    # A Loss that is called by another one.
    means = {id(one): one for one in batch.means if one.shape.rank == 0}
    known = {id(one): SHARED for one in batch.weights_and_totals()} | dict.fromkeys(means, Followed(depth=1))
    known |= {id(one): Followed(depth=1, power=1.0, is_linear=False) for one in batch.sums}
    if id(value) in known:
        return None

    def is_source(tensor: tf.Tensor) -> bool:
        # The handle of a variable, whose value is that of all replicas.
        found = SHARED if tensor.dtype == tf.resource else source(tensor)
        if id(tensor) not in known and found is not None:
            known[id(tensor)] = found
        return id(tensor) in known

    try:
        order = list(in_order([value], is_source))
        for operation in order:
            result = follow(operation, [known[id(one)] for one in operation.inputs])
            known.update((id(one), result) for one in operation.outputs if id(one) not in known)
    except (NotFollowed, TooManyOperations):
        return None
    result = known[id(value)]
    if not result.depth or result.axis is not None or result.power or result.is_linear:
        return None
    return FunctionOfSums(value, order, known, list(means.values()), batch)


@dataclasses.dataclass(frozen=True)
class FunctionOfSums:
    """A scalar that can be computed again, from sums over all replicas.

    Attributes:
        value: the scalar of this replica.
        order: the operations of the function, each after its operands.
        known: what is known of its tensors, by their ids.
        means: values of other losses, which are means over the rows of the replica, or sums as means.
        batch: the global batch of the step.
    """

    value: tf.Tensor
    order: Sequence[tf.Operation]
    known: dict[int, Followed]
    means: Sequence[tf.Tensor]
    batch: GlobalBatch
    computed: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)

    def entries(self) -> list[tf.Tensor]:
        """Returns the tensors of this replica from which the scalar is computed again, and that have a gradient."""
        means = set(map(id, self.means))
        new = [one for one in self.order if self.known[id(one.outputs[0])].depth]
        used = {id(tensor): tensor for operation in new for tensor in operation.inputs}
        return [
            tensor
            for number, tensor in used.items()
            if (number in means or not self.known[number].depth)
            and tensor.dtype.is_floating
            and tensor.op.type != "Const"
        ]

    def compute(self) -> tf.Tensor:
        """Returns the value of the global batch, the same on all replicas; called in replica context."""
        for depth in range(1, self.known[id(self.value)].depth + 1):
            at_depth = [one for one in self.order if self.known[id(one.outputs[0])].depth == depth]
            sums = [one for one in at_depth if self._is_sum(one)]
            self._add_up(sums, self._used_means() if depth == 1 else [])
            for operation in at_depth:
                if operation not in sums:
                    results = again(operation, [self._now(one) for one in operation.inputs])
                    self.computed.update(zip(map(id, operation.outputs), results, strict=True))
        return self._now(self.value)

    def _used_means(self) -> list[tf.Tensor]:
        used = {id(tensor) for operation in self.order for tensor in operation.inputs}
        return [one for one in self.means if id(one) in used]

    def _is_sum(self, operation: tf.Operation) -> bool:
        return is_sum_over_rows(operation, [self.known[id(one)] for one in operation.inputs])

    def _now(self, tensor: tf.Tensor) -> tf.Tensor:
        return self.computed.get(id(tensor), tensor)

    def _add_up(self, sums: Sequence[tf.Operation], means: Sequence[tf.Tensor]) -> None:
        """Adds up the sums of this replica and those of all others, in one all-reduce."""
        parts, counts = list[tf.Tensor](), list[tf.Tensor]()
        for operation in sums:
            operand = self._now(operation.inputs[0])
            if operation.type == "L2Loss":
                parts.append(tf.nn.l2_loss(operand))
                continue
            keeps = operation.get_attr("keep_dims")
            parts.append(tf.reduce_sum(operand, operation.inputs[1], keepdims=keeps))
            if operation.type == "Mean":
                counts.append(tf.size(operand, tf.int64) // max(parts[-1].shape.num_elements(), 1))
        # What the step divides is a sum already. A mean over no rows is NaN.
        summed = {id(one) for number, one in enumerate(self.batch.sums) if number in self.batch.rule.divided_sums}
        shares = [tf.ones([], one.dtype) if id(one) in summed else self.batch.share(one.dtype) for one in means]
        parts.extend(map(tf.math.multiply_no_nan, means, shares))
        totals = _sum_over_replicas([*parts, *counts])
        counted = iter(totals[len(parts) :])
        results = [operation.outputs[0] for operation in sums] + list(means)
        for result, total in zip(results, totals[: len(parts)], strict=True):
            is_mean = result.op.type == "Mean" and not any(result is one for one in means)
            mean = total / next(counted) if is_mean else total
            self.computed[id(result)] = tf.cast(mean, result.dtype)


def _sum_over_replicas(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the sums of tensors over all replicas, in float64 if one of them is float64, else in float32."""
    exact = tf.float64 if any(one.dtype == tf.float64 for one in values) else tf.float32
    lengths = [one.shape.num_elements() for one in values]
    packed = tf.concat([tf.reshape(tf.cast(one, exact), [-1]) for one in values], axis=0)
    total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, packed)
    parts = tf.split(total, lengths)
    return [tf.reshape(part, one.shape) for part, one in zip(parts, values, strict=True)]
