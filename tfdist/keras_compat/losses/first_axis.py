"""Finds out from what a tensor is computed, to tell an axis of rows from one of the same length."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfdist.keras_compat.reached import captured, reached

# Operations whose result is the same for all rows, whatever the batch.
_KNOWN = ("Const", "ReadVariableOp", "VarHandleOp")


def may_be_rows(value: tf.Tensor) -> bool:
    """Returns whether the first axis of a tensor may be that of the rows of a batch, whatever its length.

    It is not if the tensor is computed from variables and constants alone, such as a weight, or if values were stacked
    along the axis, such as the outputs of several heads.

    Args:
        value: tensor of rank 1 or more. Of an eager tensor nothing is known.
    """
    if not hasattr(value, "graph"):
        return True
    return any(
        not _is_stacked(one) and depends_on_batch(one)
        for one in reached(value, _with_first_axis)
        if not _with_first_axis(one)
    )


def depends_on_batch(value: tf.Tensor) -> bool:
    """Returns whether a tensor is computed from more than variables and constants.

    Args:
        value: tensor of a graph.
    """
    return any(_is_source(one) for one in reached(value, _origins))


def _with_first_axis(tensor: tf.Tensor) -> list[tf.Tensor]:
    """Returns the operands that have the first axis of a result."""
    if not hasattr(tensor, "graph") or tensor.shape.rank is None or _is_stacked(tensor):
        return []
    same = [one for one in tensor.op.inputs if one.shape.rank == tensor.shape.rank]
    return [one for one in same if one.shape[0] == tensor.shape[0]]


def _is_stacked(tensor: tf.Tensor) -> bool:
    return hasattr(tensor, "graph") and tensor.op.type == "Pack" and tensor.op.get_attr("axis") == 0


def _origins(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    operation = tensor.op
    if operation.type in _KNOWN:
        return ()
    if operation.type == "Placeholder":
        outer = captured(tensor)
        return () if outer is None else (outer,)
    # A row of a table, which is a variable, depends on the batch only by its number.
    return operation.inputs[1:] if operation.type.startswith("ResourceGather") else operation.inputs


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
    return operation.op_def.is_stateful or "Random" in operation.type
