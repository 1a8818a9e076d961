"""Sums over the rows of a replica that the program itself divides by these rows.

A Loss with the reduction "sum" is one over the rows of the global batch. Many programs divide it by the number of rows
that their step sees, which gives a mean over the rows of the replica, as tf.reduce_mean does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.reached import reached

# Operations through which a sum stays one, up to a factor.
_LINEAR = ("Identity", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "RealDiv", "DivNoNan", "Mul")
_DIVISIONS = ("RealDiv", "DivNoNan")
# Operations by which a number of rows is taken out of a shape.
_OF_SHAPES = ("Identity", "Cast", "StridedSlice", "Prod", "Squeeze", "Reshape", "Mul", "Pack", "GatherV2")


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


def counts_rows(value: tf.Tensor, rows: int | None) -> bool:
    """Returns whether a number is computed from the rows in the shape of a tensor that has those of the batch.

    Args:
        value: tensor of a graph.
        rows: number of rows of the replica, if it is known while the step is traced.
    """

    def taken_from(tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        is_other = tensor.op.type == "StridedSlice" and not _takes_the_first(tensor.op)
        return tensor.op.inputs[:] if tensor.op.type in _OF_SHAPES and not is_other else ()

    for one in reached(value, taken_from):
        operation = one.op
        if operation.type in ("Shape", "Size"):
            shape = operation.inputs[0].shape
            return bool(shape.rank) and shape[0] in (None, rows)
        # tf.shape of a tensor with a known shape is a constant. A number in the program is one without an operation.
        is_first = operation.type == "StridedSlice" and one.shape.rank == 0 and _takes_the_first(operation)
        if is_first and operation.inputs[0].op.type == "Const":
            return int(tf.get_static_value(operation.inputs[0])[0]) == rows
    return False


def _takes_the_first(operation: tf.Operation) -> bool:
    """Returns whether a slice of a shape has its first number: of tf.shape(x)[1], a number of steps, it does not."""
    first = tf.get_static_value(operation.inputs[1])
    return first is None or int(first[0]) == 0
