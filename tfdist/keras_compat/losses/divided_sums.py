"""Sums over the rows of a replica that the program itself divides by these rows, or by a sum over them.

A Loss with the reduction "sum" is one over the rows of the global batch. Many programs divide it by the number of rows
that their step sees, or by the sum of a mask, which gives a mean over the rows of the replica, as tf.reduce_mean does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.first_axis import is_of_rows
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


def divided_by_rows(sums: Sequence[Any], rows: int | None, *, totals: Sequence[Any] = ()) -> set[int]:
    """Returns the positions of the sums that are divided by a number of rows, or by a sum over rows, in their graph.

    Args:
        sums: losses of a replica. Eager tensors are not found.
        rows: number of rows of the replica, if it is known while the step is traced.
        totals: tensors that are those of all replicas. To divide by them gives a part of the global value.
    """
    powers = {id(one): 0 for one in (*sums, *totals)}
    return {number for number, one in enumerate(sums) if hasattr(one, "graph") and _is_divided(one, rows, powers)}


def _is_divided(value: tf.Tensor, rows: int | None, powers: dict[int, int]) -> bool:
    def uses(tensor: tf.Tensor) -> list[tf.Operation]:
        # A gradient is divided by what other losses are divided by.
        return [operation for operation in tensor.consumers() if _OF_TAPES not in operation.name]

    def results(tensor: tf.Tensor) -> list[tf.Tensor]:
        linear = [operation for operation in uses(tensor) if operation.type in _LINEAR]
        return [result for operation in linear for result in operation.outputs]

    return any(
        any(_power(divisor, rows, powers) > 0 for divisor in _divisors(operation, one))
        or any(_power(factor, rows, powers) < 0 for factor in _factors(operation, one))
        for one in reached(value, results)
        for operation in uses(one)
    )


def _divisors(operation: tf.Operation, value: tf.Tensor) -> Sequence[tf.Tensor]:
    return operation.inputs[1:] if operation.type in _DIVISIONS and operation.inputs[0] is value else ()


def _factors(operation: tf.Operation, value: tf.Tensor) -> list[tf.Tensor]:
    return [one for one in operation.inputs if one is not value] if operation.type in _PRODUCTS else []


def are_divided_by_rows(weights: Any, rows: int | None, *, totals: Sequence[Any] = ()) -> bool:
    """Returns whether the weights of rows, which are added up, were divided by a sum over rows or their number.

    Args:
        weights: tensor of this replica, or None. An eager one has no graph that could be looked at.
        rows: number of rows of the replica, if it is known while the step is traced.
        totals: tensors that are those of all replicas.
    """
    return hasattr(weights, "graph") and _power(weights, rows, {id(one): 0 for one in totals}) < 0


def _power(value: tf.Tensor, rows: int | None, known: dict[int, int], depth: int = 0) -> int:
    """Returns the power of the number of rows with which a number grows: 1 for a sum over rows, and 0 for a mean.

    Args:
        value: tensor of this replica.
        rows: number of rows of the replica, if it is known while the step is traced.
        known: the powers of tensors by their id, to which those that are found are added.
        depth: how many operations there are between the tensor and the first one.
    """
    if id(value) not in known:
        known[id(value)] = _found_power(value, rows, known, depth)
    return known[id(value)]


def _found_power(value: tf.Tensor, rows: int | None, known: dict[int, int], depth: int) -> int:
    if not hasattr(value, "graph") or depth > _DEEPEST:
        return 0
    if value.shape.num_elements() == 1 and counts_rows(value, rows):
        return 1
    kind, inputs = value.op.type, value.op.inputs

    def powers(tensors: Sequence[tf.Tensor]) -> list[int]:
        return [_power(one, rows, known, depth + 1) for one in tensors]

    if kind == "Sum":
        return int(_is_over_rows(value.op)) + sum(powers(inputs[:1]))
    if kind in _SAME:
        return sum(powers(inputs[:1]))
    if kind in _ALIKE:
        # Beside a sum over rows, others are constants that keep a divisor from being 0.
        return max(powers(inputs), key=abs, default=0)
    if kind in _PRODUCTS:
        return sum(powers(inputs))
    if kind in _DIVISIONS:
        dividend, divisor = powers(inputs)
        return dividend - divisor
    return -sum(powers(inputs)) if kind in _RECIPROCALS else 0


def _is_over_rows(operation: tf.Operation) -> bool:
    """Returns whether the axes of a sum include that of the rows."""
    operand, axes = operation.inputs[0], tf.get_static_value(operation.inputs[1])
    is_first = bool(operand.shape.rank) and (axes is None or 0 in axes.ravel() % operand.shape.rank)
    return is_first and is_of_rows(operand)


def counts_rows(value: tf.Tensor, rows: int | None, *, by_length: bool = True) -> bool:
    """Returns whether a number is computed from the rows in the shape of a tensor that has those of the batch.

    Args:
        value: tensor of a graph.
        rows: number of rows of the replica, if it is known while the step is traced.
        by_length: whether the tensor has as many rows as the replica, if both numbers are known.
    """

    def taken_from(tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        is_taken = tensor.op.type in _OF_SHAPES and _place(tensor) in (0, None)
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
