"""Follows the axis of the rows through the operations of a loss function, from its arguments to its value.

A value that is computed from sums and means over rows, such as a sum over the rows divided by that of a mask, or a Dice
coefficient, is the same function of the sums over all replicas on a single device. It is only found here if every
operation is known: what is not known is left as the program computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_compat.losses.following_rows.axes import AXES
from tfdist.keras_compat.losses.following_rows.entries import ENTRIES
from tfdist.keras_compat.losses.following_rows.followed import SHARED, Followed, NotFollowed

# Operations that compute one shape from another, and those that take one.
_OF_SHAPES = "AddV2 Cast ConcatV2 FloorDiv GatherV2 Identity Mul Pack Prod StridedSlice Sub Unpack"
_BY_SHAPES = ("BroadcastTo", "Reshape")
_RULES = {**ENTRIES, **AXES}


def follow(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """Returns what is known of the results of an operation.

    Args:
        operation: operation of a graph.
        given: what is known of its operands.

    Raises:
        NotFollowed: if the operation is not known, or mixes rows.
    """
    kind = operation.type
    if kind in ("Const", "VarHandleOp", "ReadVariableOp"):
        return SHARED
    if operation.op_def.is_stateful or not operation.inputs:
        raise NotFollowed
    if all(one == SHARED for one in given):
        return SHARED
    if kind in ("Shape", "Size"):
        return Followed(is_shape=True)
    takes_shape = kind in _BY_SHAPES and not given[0].is_shape
    if any(one.is_shape for one in (given[:1] if takes_shape else given)):
        if kind not in _OF_SHAPES.split() or any(one != SHARED and not one.is_shape for one in given):
            raise NotFollowed
        return Followed(is_shape=True)
    if kind not in _RULES:
        raise NotFollowed
    return _RULES[kind](operation, given)
