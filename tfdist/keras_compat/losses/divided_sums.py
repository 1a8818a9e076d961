"""Sums over the rows of a replica that the program itself divides by these rows, or by a sum over them.

A Loss with the reduction "sum" is one over the rows of the global batch. Many programs divide it by the number of rows
that their step sees, or by the sum of a mask, which gives a mean over the rows of the replica, as tf.reduce_mean does.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.first_axis import depends_on_batch, is_of_rows
from tfdist.keras_compat.reached import reached

# Operations through which a sum stays one, up to a factor.
_LINEAR = ("Identity", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "RealDiv", "DivNoNan", "Mul")
_DIVISIONS = ("RealDiv", "DivNoNan")
# Operations by which a number of rows is taken out of a shape.
_OF_SHAPES = ("Identity", "Cast", "StridedSlice", "Unpack", "Prod", "Squeeze", "Reshape", "Mul", "Pack", "GatherV2")
# Operations that leave a number what it is, or choose between numbers that grow alike.
_SAME = ("Identity", "Cast", "Neg", "Squeeze", "Reshape", "ExpandDims", "Mean", "BroadcastTo")
_ALIKE = ("AddV2", "Add", "AddN", "Sub", "Maximum", "Minimum", "SelectV2")
_PRODUCTS = ("Mul", "MulNoNan")
_RECIPROCALS = ("Reciprocal", "Inv")
# In the names of operations of a gradient.
_OF_TAPES = "gradient_tape/"
# A program divides by what it computes in a few operations.
_DEEPEST = 50
_MOST_USES = 1000


def divided_by_rows(
    sums: Sequence[Any], rows: int | None, *, totals: Sequence[Any] = (), targets: Collection[int] = ()
) -> set[int]:
    """Returns the positions of the sums that are divided by a number of rows, or by a sum over rows, in their graph.

    Args:
        sums: losses of a replica. Eager tensors are not found.
        rows: number of rows of the replica, if it is known while the step is traced.
        totals: tensors that are those of all replicas. To divide by them gives a part of the global value.
        targets: the ids of the tensors that the step has differentiated.
    """
    powers = Powers(rows, frozenset(map(id, (*sums, *totals))))
    return {
        number
        for number, one in enumerate(sums)
        if hasattr(one, "graph") and (_is_divided(one, rows) or _is_trained_divided(one, powers, targets))
    }


def _uses(tensor: tf.Tensor) -> list[tf.Operation]:
    # A gradient is divided by what other losses are divided by.
    return [operation for operation in tensor.consumers() if _OF_TAPES not in operation.name]


def _is_divided(value: tf.Tensor, rows: int | None) -> bool:
    def results(tensor: tf.Tensor) -> list[tf.Tensor]:
        linear = [operation for operation in _uses(tensor) if operation.type in _LINEAR]
        return [result for operation in linear for result in operation.outputs]

    return any(
        operation.type in _DIVISIONS and operation.inputs[0] is one and counts_rows(operation.inputs[1], rows)
        for one in reached(value, results)
        for operation in _uses(one)
    )


def _is_trained_divided(value: tf.Tensor, powers: Powers, targets: Collection[int]) -> bool:
    """Returns whether a sum is divided by a sum over rows, also by a reciprocal, wherever it is differentiated.

    A step may train a sum, and divide it for a log. If nothing is differentiated, any result that is divided counts.
    """
    trained, results, waiting, seen = list[float](), list[float](), [(value, 0.0)], set[tuple[int, float]]()
    while waiting and len(seen) < _MOST_USES:
        tensor, power = waiting.pop()
        if (id(tensor), power) in seen:
            continue
        seen.add((id(tensor), power))
        if id(tensor) in targets:
            trained.append(power)
        linear = [operation for operation in _uses(tensor) if operation.type in (*_LINEAR, *_PRODUCTS)]
        changed = [(operation.outputs[0], power + _change(operation, tensor, powers)) for operation in linear]
        waiting.extend((result, after) for result, after in changed if not math.isnan(after))
        if not linear:
            results.append(power)
    return all(power < 0 for power in trained) if trained else any(power < 0 for power in results)


def _change(operation: tf.Operation, value: tf.Tensor, powers: Powers) -> float:
    """Returns by how much an operation changes the power of the rows with which a value grows; NaN if not known."""
    if operation.type in _DIVISIONS:
        return -powers.of(operation.inputs[1]) if operation.inputs[0] is value else math.nan
    if operation.type in _PRODUCTS:
        return sum(powers.of(one) for one in operation.inputs if one is not value)
    return 0.0


def are_divided_by_rows(weights: Any, rows: int | None, *, totals: Sequence[Any] = ()) -> bool:
    """Returns whether the weights of rows, which are added up, were divided by a sum over rows or their number.

    Args:
        weights: tensor of this replica, or None. An eager one has no graph that could be looked at.
        rows: number of rows of the replica, if it is known while the step is traced.
        totals: tensors that are those of all replicas.
    """
    return hasattr(weights, "graph") and Powers(rows, frozenset(map(id, totals))).of(weights) < 0


@dataclasses.dataclass(frozen=True)
class Powers:
    """Finds with which power of the number of rows a number grows: 1 for a sum over rows, and 0 for a mean.

    Attributes:
        rows: number of rows of the replica, if it is known while the step is traced.
        of_all: the ids of tensors that are those of all replicas.
        known: what was found, by the ids of tensors.
    """

    rows: int | None
    of_all: frozenset[int]
    known: dict[int, float] = dataclasses.field(default_factory=dict)

    def of(self, value: tf.Tensor, depth: int = 0) -> float:
        """Returns the power of a tensor of this replica; NaN if it is not known."""
        if id(value) not in self.known:
            self.known[id(value)] = self._find(value, depth)
        return self.known[id(value)]

    def _find(self, value: tf.Tensor, depth: int) -> float:
        if id(value) in self.of_all or not hasattr(value, "graph") or depth > _DEEPEST:
            return 0.0
        if value.shape.num_elements() == 1 and counts_rows(value, self.rows):
            return 1.0
        kind, inputs = value.op.type, value.op.inputs
        if kind == "Const":
            return math.nan if self._may_count(value) else 0.0
        if kind in _ALIKE:
            # Beside a sum over rows, others are constants that keep a divisor from being 0.
            powers = [self.of(one, depth + 1) for one in inputs if one.op.type != "Const"]
            return math.nan if any(map(math.isnan, powers)) else max(powers, key=abs, default=0.0)
        if kind not in (*_SAME, *_PRODUCTS, *_DIVISIONS, *_RECIPROCALS, "Sum"):
            return 0.0
        powers = [self.of(one, depth + 1) for one in inputs]
        if kind == "Sum":
            return powers[0] + self._is_over_rows(value.op)
        if kind in _SAME:
            return powers[0]
        if kind in _PRODUCTS:
            return sum(powers)
        return powers[0] - powers[1] if kind in _DIVISIONS else -powers[0]

    def _may_count(self, constant: tf.Tensor) -> bool:
        """Returns whether a constant may be a number of rows, or of their entries, that Python or a graph knows."""
        if constant.shape.num_elements() != 1 or not self.rows or self.rows == 1:
            return False
        number = float(abs(tf.get_static_value(constant).ravel()[0])) if not constant.dtype.is_bool else 0.0
        return number > 0 and any(one.is_integer() for one in (number / self.rows, 1 / (number * self.rows)))

    def _is_over_rows(self, operation: tf.Operation) -> bool:
        """Returns whether the axes of a sum include that of rows of this replica, whose values come from the batch."""
        operand, axes = operation.inputs[0], tf.get_static_value(operation.inputs[1])
        is_first = bool(operand.shape.rank) and (axes is None or 0 in axes.ravel() % operand.shape.rank)
        return is_first and is_of_rows(operand) and depends_on_batch(operand, self._is_no_value)

    def _is_no_value(self, tensor: tf.Tensor) -> bool:
        # Ranges and windows depend on the batch by a shape alone, whose first number need not be that of the rows.
        return id(tensor) in self.of_all or (hasattr(tensor, "graph") and tensor.op.type in ("Shape", "Size"))


def counts_rows(value: tf.Tensor, rows: int | None, *, by_length: bool = True) -> bool:
    """Returns whether a number is computed from the rows in the shape of a tensor that has those of the batch.

    Args:
        value: tensor of a graph.
        rows: number of rows of the replica, if it is known while the step is traced.
        by_length: whether the tensor has as many rows as the replica, if both numbers are known.
    """

    def taken_from(tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        is_taken = tensor.op.type in _OF_SHAPES and _place(tensor) in (0, None) and not _is_of_other_axes(tensor)
        return tensor.op.inputs[:] if is_taken else ()

    for one in reached(value, taken_from):
        operation = one.op
        if operation.type in ("Shape", "Size"):
            operand = operation.inputs[0]
            if not by_length:
                return bool(operand.shape.rank) and is_of_rows(operand)
            return bool(operand.shape.rank) and operand.shape[0] in (None, rows)
        # tf.shape of a tensor with a known shape is a constant. A number in the program is one without an operation.
        if (_place(one) == 0 or _is_product(operation)) and _source(operation).op.type == "Const":
            return not by_length or int(tf.get_static_value(_source(operation))[0]) == rows
    return False


def _place(number: tf.Tensor) -> int | None:
    """Returns which number of a shape a tensor is; None if it is none, or if that is not known."""
    operation, source = number.op, _source(number.op)
    is_shape = source.op.type in ("Shape", "Const") and source.shape.rank == 1 and source.dtype.is_integer
    if not is_shape or number.shape.rank != 0:
        return None
    if operation.type == "Unpack":
        return number.value_index
    first = tf.get_static_value(operation.inputs[1]) if operation.type == "StridedSlice" else None
    # The shape of a tensor of unknown rank has an unknown length.
    return None if first is None else int(first[0]) % (source.shape[0] or sys.maxsize)


def _is_of_other_axes(numbers: tf.Tensor) -> bool:
    """Returns whether numbers are a part of a shape without its first number, as `tf.shape(x)[1:]`."""
    if numbers.op.type != "StridedSlice" or numbers.shape.rank != 1:
        return False
    begin = tf.get_static_value(numbers.op.inputs[1])
    return begin is not None and int(begin[0]) % (numbers.op.inputs[0].shape[0] or sys.maxsize) != 0


def _is_product(operation: tf.Operation) -> bool:
    """Returns whether an operation multiplies the numbers of a shape, as a Loss of Keras 3 does."""
    source = _source(operation)
    return operation.type == "Prod" and source.shape.rank == 1 and source.dtype.is_integer and bool(source.shape[0])


def _source(operation: tf.Operation) -> tf.Tensor:
    """Returns the tensor of which an operation takes a slice."""
    tensor = operation.inputs[0] if operation.inputs else operation.outputs[0]
    while tensor.op.type in ("Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return tensor
