"""Sums over the rows of a replica that the program itself divides by these rows.

A Loss with the reduction "sum" is one over the rows of the global batch. Many programs divide it by the number of rows
that their step sees, which gives a mean over the rows of the replica, as tf.reduce_mean does.
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


def divided_by_rows(sums: Sequence[Any], rows: int | None) -> set[int]:
    """Returns the positions of the sums that are divided by a number of rows, in the graph in which they were computed.

    Args:
        sums: losses of a replica. Eager tensors are not found.
        rows: number of rows of the replica, if it is known while the step is traced.
    """
    return {number for number, one in enumerate(sums) if hasattr(one, "graph") and _is_divided(one, rows)}


def _is_divided(value: tf.Tensor, rows: int | None) -> bool:
    def results(tensor: tf.Tensor) -> list[tf.Tensor]:
        linear = [operation for operation in tensor.consumers() if operation.type in _LINEAR]
        return [result for operation in linear for result in operation.outputs]

    return any(
        operation.type in _DIVISIONS and operation.inputs[0] is one and counts_rows(operation.inputs[1], rows)
        for one in reached(value, results)
        for operation in one.consumers()
    )


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
        if _place(one) == 0 and _source(operation).op.type == "Const":
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


def _source(operation: tf.Operation) -> tf.Tensor:
    """Returns the tensor of which an operation takes a slice."""
    tensor = operation.inputs[0] if operation.inputs else operation.outputs[0]
    while tensor.op.type in ("Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return tensor
