"""Finds the rows of a batch in tensors whose first axis is not theirs alone, such as the tokens of all rows."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.keras_compat.reached import reached

# Operations that keep all entries of their first operand.
_SHAPED = ("Identity", "Reshape", "ExpandDims", "Squeeze", "Transpose")
_JOINED = ("Pack", "ConcatV2")


def holds_rows(value: tf.Tensor, has_rows: Callable[[tf.Tensor], bool]) -> bool:
    """Returns whether each entry of a tensor belongs to a row, so that a mean over all entries is one over rows.

    Args:
        value: tensor of a graph.
        has_rows: returns whether the first axis of a tensor is that of the rows.
    """

    def sources(tensor: tf.Tensor) -> list[tf.Tensor]:
        if has_rows(tensor) or tensor.op.type not in (*_SHAPED, *_JOINED):
            return []
        operands = list(tensor.op.inputs)
        # The axis of a concatenation is its last operand.
        return operands[:1] if tensor.op.type in _SHAPED else [one for one in operands if one.dtype == tensor.dtype]

    leaves = [one for one in reached(value, sources) if not hasattr(one, "graph") or not sources(one)]
    return all(has_rows(one) for one in leaves)


def is_longer_by_rows(value: tf.Tensor, has_rows: Callable[[tf.Tensor], bool]) -> bool:
    """Returns whether the first axis of a tensor has several entries for each row, such as all tokens of the rows.

    Args:
        value: tensor of rank 1 or more of a graph.
        has_rows: returns whether the first axis of a tensor is that of the rows.
    """

    def as_long(tensor: tf.Tensor) -> list[tf.Tensor]:
        if tensor.op.type in _JOINED or tensor.shape[0] is None:
            return []
        return [one for one in tensor.op.inputs if one.shape.rank and one.shape[0] == tensor.shape[0]]

    return any(_merges_rows(one, has_rows) for one in reached(value, as_long))


def _merges_rows(tensor: tf.Tensor, has_rows: Callable[[tf.Tensor], bool]) -> bool:
    if not hasattr(tensor, "graph") or not tensor.shape.rank:
        return False
    if tensor.op.type == "ConcatV2":
        *operands, axis = tensor.op.inputs
        return tf.get_static_value(axis) == 0 and all(has_rows(one) for one in operands)
    if tensor.op.type != "Reshape" or not has_rows(tensor.op.inputs[0]):
        return False
    # The first axes become one, and the others stay.
    before, kept = tensor.op.inputs[0].shape, tensor.shape[1:]
    return kept.is_fully_defined() and kept.rank < before.rank and before[before.rank - kept.rank :] == kept
