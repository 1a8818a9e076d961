"""Follows the axis of the rows through the operations of a loss function, from its arguments to its value.

A value that is computed from sums and means over rows, such as a sum over the rows divided by that of a mask, or a Dice
coefficient, is the same function of the sums over all replicas on a single device. It is only found here if every
operation is known: what is not known is left as the program computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_compat.losses.following_rows.axes import AXES, by_places
from tfdist.keras_compat.losses.following_rows.entries import ENTRIES
from tfdist.keras_compat.losses.following_rows.followed import SHARED, Followed, NotFollowed

# Operations that compute one shape from another, and those that take one.
_OF_SHAPES = (
    "AddV2",
    "Cast",
    "ConcatV2",
    "FloorDiv",
    "GatherV2",
    "Identity",
    "Mul",
    "Pack",
    "Prod",
    "StridedSlice",
    "Sub",
    "Unpack",
)
# By the place of what is not the shape.
_BY_SHAPES = {"BroadcastTo": 0, "Fill": 1, "Reshape": 0}
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
    if any(one.is_places for one in given):
        return by_places(operation, given)
    if kind in _BY_SHAPES and not given[_BY_SHAPES[kind]].is_shape:
        return _RULES[kind](operation, given)
    if kind in ("Shape", "Size") or any(one.is_shape for one in given):
        return _of_shape(operation, given)
    if kind not in _RULES:
        raise NotFollowed
    return _RULES[kind](operation, given)


def _of_shape(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """Returns what is known of a shape, or of numbers of one."""
    kind = operation.type
    if kind in ("Shape", "Size"):
        return Followed(is_shape=True, counted=given[0].axis if kind == "Shape" else None, entries=given[0].entries)
    if kind not in _OF_SHAPES or any(one != SHARED and not one.is_shape for one in given):
        raise NotFollowed
    if kind in ("Cast", "Identity"):
        return given[0]
    if kind == "StridedSlice" and given[0].counted is not None and operation.outputs[0].shape.rank == 0:
        first = tf.get_static_value(operation.inputs[1])
        if first is not None and int(first[0]) % operation.inputs[0].shape[0] != given[0].counted:
            return SHARED
    return Followed(is_shape=True)
