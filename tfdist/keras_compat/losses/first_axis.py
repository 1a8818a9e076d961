"""Finds out from what a tensor is computed, to tell an axis of rows from one of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import tensorflow as tf

from tfdist.keras_compat.reached import captured, reached

# Operations whose result is the same for all rows, whatever the batch.
_KNOWN = ("Const", "ReadVariableOp", "VarHandleOp")
_REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min", "All", "Any", "EuclideanNorm")
# Operations that compute a result in functions, from all of their operands.
_CALLS = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "PartitionedCall", "StatefulPartitionedCall")
# Operations that compute an entry from the same entry of each operand.
_ON_ENTRIES = ("Identity", "StopGradient", "Cast", "AddV2", "Add", "AddN", "Sub", "Mul", "RealDiv", "SelectV2")


def is_of_rows(value: tf.Tensor) -> bool:
    """Returns whether the first axis of a tensor is that of the rows of a batch, whatever its length.

    It is not if the tensor is computed from variables and constants alone, such as a weight, if values were stacked
    along the axis, such as the outputs of several heads, if the axis was another one before a transposition, or if the
    rows were reduced, as in a mean for each feature.

    Args:
        value: tensor of rank 1 or more of a graph.
    """
    leaves = [one for one in reached(value, _with_first_axis) if not _with_first_axis(one)]
    return any(not _is_other_axis(one) and depends_on_batch(one) for one in leaves)


def is_of_weights(value: tf.Tensor) -> bool:
    """Returns whether a tensor is computed from variables, so that its first axis is not that of rows.

    It is if nothing of the batch takes part. It is also if each entry is computed from that of a variable of the same
    shape, such as a weight with noise, or after a step along its gradient: a program for one device adds no variable
    of as many rows as a replica has to the rows of its batch.

    Args:
        value: tensor of rank 1 or more of a graph.
    """
    is_long = value.shape[0] not in (None, 1)
    if is_long and any(_is_read(one) and one.shape == value.shape for one in reached(value, _on_entries)):
        return True
    reads = any(_is_read(one) or _is_gathered(one) for one in reached(value, _origins))
    return reads and not depends_on_batch(value)


def depends_on_batch(value: tf.Tensor, is_known: Callable[[tf.Tensor], bool] = lambda tensor: False) -> bool:
    """Returns whether a tensor is computed from more than variables and constants.

    Args:
        value: tensor of a graph.
        is_known: returns whether a tensor counts as known, so that what it is computed from does not matter.
    """

    def origins(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
        return () if is_known(tensor) else _origins(tensor)

    return any(_is_source(one) and not is_known(one) for one in reached(value, origins))


def _on_entries(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    return tensor.op.inputs if tensor.op.type in _ON_ENTRIES else ()


def _is_read(tensor: tf.Tensor) -> bool:
    return hasattr(tensor, "graph") and tensor.op.type == "ReadVariableOp"


def _is_gathered(tensor: tf.Tensor) -> bool:
    return hasattr(tensor, "graph") and tensor.op.type.startswith("ResourceGather")


def _with_first_axis(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the operands that have the first axis of a result, if it is that of an operation on single entries."""
    if not hasattr(tensor, "graph") or tensor.shape.rank is None or _is_other_axis(tensor):
        return []
    if tensor.op.type in _CALLS or "Scatter" in tensor.op.type:
        return []
    same = [one for one in tensor.op.inputs if one.shape.rank == tensor.shape.rank]
    return [one for one in same if one.shape[0] == tensor.shape[0]]


def _is_other_axis(tensor: tf.Tensor) -> bool:
    if not hasattr(tensor, "graph"):
        return False
    operation = tensor.op
    if operation.type in _REDUCTIONS:
        axes, operand = tf.get_static_value(operation.inputs[1]), operation.inputs[0]
        is_first = axes is None or not operand.shape.rank or 0 in axes.ravel() % operand.shape.rank
        return is_first and bool(operand.shape.rank) and is_of_rows(operand)
    if operation.type == "StridedSlice":
        # One entry of the axis, as `x[0]`.
        return bool(operation.get_attr("shrink_axis_mask") & 1)
    if operation.type == "Transpose":
        order = tf.get_static_value(operation.inputs[1])
        return order is not None and int(order[0]) != 0
    return operation.type == "Pack" and operation.get_attr("axis") == 0


def _origins(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    operation = tensor.op
    if operation.type in _KNOWN:
        return ()
    if operation.type == "Placeholder":
        outer = captured(tensor)
        return () if outer is None else (outer,)
    # A row of a table, which is a variable, depends on the batch only by its number.
    return operation.inputs[1:] if _is_gathered(tensor) else operation.inputs


def _is_source(tensor: tf.Tensor) -> bool:
    if not hasattr(tensor, "graph"):
        # A constant that was captured, or the resource of an iterator.
        return tensor.dtype in (tf.resource, tf.variant)
    operation = tensor.op
    if operation.type in _KNOWN:
        return False
    if operation.type == "Placeholder":
        return captured(tensor) is None
    # Random numbers may be those of rows.
    return operation.op_def.is_stateful or "Random" in operation.type or "Multinomial" in operation.type
