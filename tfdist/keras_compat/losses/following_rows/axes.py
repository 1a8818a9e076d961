"""Follows the rows through operations that move, join, split or take entries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_compat.losses.following_rows.entries import alike, none
from tfdist.keras_compat.losses.following_rows.followed import (
    SHARED,
    Followed,
    NotFollowed,
    Rule,
    entries_of,
    moved,
    rank_of,
)

_IMAGES = ("AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool")
_CROSS_ENTROPIES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
# Operations of which more than the first operand may have rows, or be computed from sums.
_OF_SEVERAL = ("ConcatV2", "GatherV2", "Pack", "Split", *_CROSS_ENTROPIES)


def _reshaped(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    values, before, after = given[0], operation.inputs[0].shape, operation.outputs[0].shape
    if values.axis is None:
        return values
    if values.axis != 0 or not after.rank:
        raise NotFollowed
    place = next((place for place, length in enumerate(after) if length != 1), 0)
    first, given_shape = after[place], tf.get_static_value(operation.inputs[1])
    if first is None or (given_shape is not None and given_shape[place] == -1 and before[0] is None):
        # All other axes are given.
        return dataclasses.replace(values, axis=place, entries=None)
    if not before[0] or not values.entries:
        raise NotFollowed
    entries = values.entries * first / before[0]
    if not entries or not entries.is_integer():
        raise NotFollowed
    return dataclasses.replace(values, axis=place, entries=int(entries))


def _expanded(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    place = tf.get_static_value(operation.inputs[1])
    if place is None:
        raise NotFollowed
    place = int(place) % rank_of(operation.outputs[0])
    return moved(given[0], lambda axis: axis + (place <= axis))


def _squeezed(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    dropped = {axis % max(rank_of(operation.inputs[0]), 1) for axis in operation.get_attr("squeeze_dims")}
    if given[0].axis is not None and (not dropped or given[0].axis in dropped):
        raise NotFollowed
    return moved(given[0], lambda axis: axis - sum(one < axis for one in dropped))


def _transposed(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    order = tf.get_static_value(operation.inputs[1])
    if order is None:
        raise NotFollowed
    return moved(given[0], lambda axis: [int(one) for one in order].index(axis))


def _sliced(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """The axis of the rows has to be taken whole, as in `x[:, 1:]` or `x[..., 0]`."""
    values = given[0]
    if values.axis is None:
        return values
    masks = {
        name: operation.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    length = operation.inputs[1].shape[0]
    given_axes = sum(
        not masks["new_axis"] >> place & 1 and not masks["ellipsis"] >> place & 1 for place in range(length)
    )
    axis = result = 0
    for place in range(length):
        bit = 1 << place
        if masks["ellipsis"] & bit:
            skipped = rank_of(operation.inputs[0]) - given_axes
            if axis <= values.axis < axis + skipped:
                return dataclasses.replace(values, axis=result + values.axis - axis)
            axis, result = axis + skipped, result + skipped
        elif masks["new_axis"] & bit:
            result += 1
        elif axis == values.axis:
            strides = tf.get_static_value(operation.inputs[3])
            is_whole = masks["begin"] & bit and masks["end"] & bit and not masks["shrink_axis"] & bit
            if not is_whole or strides is None or strides[place] != 1:
                raise NotFollowed
            return dataclasses.replace(values, axis=result)
        else:
            axis, result = axis + 1, result + (not masks["shrink_axis"] & bit)
    return dataclasses.replace(values, axis=result + values.axis - axis)


def _joined(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    tensors, is_stack = list(given), operation.type == "Pack"
    if is_stack:
        place = operation.get_attr("axis")
    else:
        place, tensors = tf.get_static_value(operation.inputs[-1]), tensors[:-1]
    axes = {one.axis for one in tensors}
    if place is None or len(axes) > 1:
        raise NotFollowed
    axis, place = next(iter(axes)), int(place) % rank_of(operation.outputs[0])
    if not is_stack and axis == place:
        raise NotFollowed
    depth = max(one.depth for one in tensors)
    return Followed(
        axis=axis if axis is None else axis + (is_stack and place <= axis),
        depth=depth,
        power=alike(operation, tensors) if depth else 0.0,
        is_linear=all(one.is_linear for one in tensors),
        entries=1 if axis is None else entries_of(tensors),
        is_selected=any(one.is_selected for one in tensors),
    )


def _taken_apart(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """Unpack takes an axis away, Split keeps it."""
    is_split = operation.type != "Unpack"
    values, tensor = (given[-1], operation.inputs[-1]) if operation.type == "Split" else (given[0], operation.inputs[0])
    along = 0 if operation.type == "Split" else -1
    place = tf.get_static_value(operation.inputs[along]) if is_split else operation.get_attr("axis")
    if place is None or int(place) % rank_of(tensor) == values.axis:
        raise NotFollowed
    return moved(values, lambda axis: axis - (not is_split and int(place) % rank_of(tensor) < axis))


def _gathered(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    values, places = given[0], given[1]
    axis = tf.get_static_value(operation.inputs[2])
    together = operation.get_attr("batch_dims")
    if axis is None or places.depth or together < 0:
        raise NotFollowed
    if together:
        # An entry of each row, as the class of its label.
        if values.axis is None or values.axis != places.axis or values.axis >= together:
            raise NotFollowed
        return dataclasses.replace(values, is_selected=values.is_selected or places.is_selected)
    axis = int(axis) % rank_of(operation.inputs[0])
    if values.axis is None and places.axis is not None:
        return dataclasses.replace(
            places, axis=axis + places.axis, depth=values.depth, power=values.power, is_linear=values.is_linear
        )
    if places.axis is None:
        if axis == values.axis:
            raise NotFollowed
        added = rank_of(operation.inputs[1]) - 1
        return moved(values, lambda own: own + (added if axis < own else 0))
    raise NotFollowed


def _where(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """The places of the true entries of a mask, by which tf.boolean_mask takes the same entries of a tensor."""
    if given[0].axis != 0 or given[0].depth or rank_of(operation.inputs[0]) != 1:
        raise NotFollowed
    return dataclasses.replace(given[0], is_places=True)


def by_places(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """Places are no values: rows have other places on one device."""
    if operation.type in ("Squeeze", "Identity", "Cast") and given[0].is_places:
        return given[0]
    values, places = given[:2]
    if operation.type != "GatherV2" or values.is_places or values.axis != 0 or values.entries != places.entries:
        raise NotFollowed
    if operation.get_attr("batch_dims") or tf.get_static_value(operation.inputs[2]) != 0:
        raise NotFollowed
    return dataclasses.replace(values, entries=None, is_selected=True, is_places=False)


def _by_last_axis(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    none(operation, given)
    if given[0].axis == rank_of(operation.inputs[0]) - 1:
        raise NotFollowed
    return dataclasses.replace(given[0], is_linear=not given[0].depth)


def _cross_entropies(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    if any(one.axis not in (0, None) or one.depth for one in given) or given[0].axis is None:
        raise NotFollowed
    return Followed(axis=0, entries=entries_of(given), is_selected=any(one.is_selected for one in given))


def _along_an_axis(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    axes = tf.get_static_value(operation.inputs[1])
    rank = rank_of(operation.inputs[0])
    none(operation, given)
    if axes is None or given[0].axis in {int(axis) % rank for axis in axes.ravel()}:
        raise NotFollowed
    is_dropped = operation.type in ("ArgMax", "ArgMin")
    before = sum(int(axis) % rank < (given[0].axis or 0) for axis in axes.ravel()) if is_dropped else 0
    return dataclasses.replace(moved(given[0], lambda axis: axis - before), is_linear=not given[0].depth)


def _one_hot(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    place = operation.get_attr("axis") % rank_of(operation.outputs[0])
    return moved(given[0], lambda axis: axis + (place <= axis))


def _images(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    if given[0].axis != 0 or given[0].depth:
        raise NotFollowed
    return given[0]


def _product(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    left, right = (one.shape for one in operation.inputs)
    is_transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    # The rows are an axis of several matrices, or the rows of one.
    is_alone = right.rank == 2 or (right.rank == left.rank and right[0] == 1)
    if given[0].axis != 0 or given[0].depth or (is_transposed and left.rank == 2) or not is_alone:
        raise NotFollowed
    return given[0]


def _padded(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    amounts = tf.get_static_value(operation.inputs[1])
    if amounts is None or given[0].depth or given[0].axis is None or amounts[given[0].axis].any():
        raise NotFollowed
    return given[0]


def _broadcast(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    values, shape = given
    if values.axis is None and not shape.is_shape:
        return values
    if values.axis is None:
        return _filled(operation, [shape, values])
    added = rank_of(operation.outputs[0]) - rank_of(operation.inputs[0])
    if shape.counted != values.axis + added:
        raise NotFollowed
    return moved(values, lambda axis: axis + added)


def _filled(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
    """The shape has to be that of a tensor with rows."""
    shape, value = given
    if shape.counted is None or value != SHARED:
        raise NotFollowed
    return Followed(axis=shape.counted, entries=shape.entries)


def _checked(kind: str, rule: Rule) -> Rule:
    def checked(operation: tf.Operation, given: Sequence[Followed]) -> Followed:
        if kind not in _OF_SEVERAL and any(one.axis is not None or one.depth for one in given[1:]):
            raise NotFollowed
        return rule(operation, given)

    return checked


_NAMES: dict[Rule, Sequence[str]] = {
    _along_an_axis: ("ArgMax", "ArgMin", "Cumprod", "Cumsum", "ReverseV2"),
    _broadcast: ("BroadcastTo",),
    _by_last_axis: ("LogSoftmax", "Softmax", "TopKV2"),
    _cross_entropies: _CROSS_ENTROPIES,
    _expanded: ("ExpandDims",),
    _filled: ("Fill",),
    _gathered: ("GatherV2",),
    _images: _IMAGES,
    _joined: ("ConcatV2", "Pack"),
    _one_hot: ("OneHot",),
    _padded: ("MirrorPad", "Pad", "PadV2"),
    _product: ("BatchMatMulV2", "MatMul"),
    _reshaped: ("Reshape",),
    _sliced: ("StridedSlice",),
    _squeezed: ("Squeeze",),
    _taken_apart: ("Split", "SplitV", "Unpack"),
    _transposed: ("Transpose",),
    _where: ("Where",),
}
AXES: dict[str, Rule] = {kind: _checked(kind, rule) for rule, kinds in _NAMES.items() for kind in kinds}
