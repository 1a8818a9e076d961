"""What is known of the axis of rows of a tensor in a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf


class NotFollowed(Exception):
    """The rows cannot be followed through an operation."""


@dataclasses.dataclass(frozen=True)
class Followed:
    """What is known of a tensor.

    Attributes:
        axis: the axis of the rows; None if the tensor has none, so that it is the same on all replicas.
        depth: how many sums over rows, one of the other, it is computed from; 0 if from none.
        power: with which power of the number of rows it grows.
        is_linear: whether it is a linear function of means over rows, if it is computed from some.
        entries: number of entries along the axis for each row, if it is known.
        is_selected: whether the length of the axis is not the number of rows or a multiple, as after a mask.
        is_places: whether it has the places of selected entries.
        is_shape: whether it is a shape, or numbers of one.
        counted: the place of the number of rows in the shape, if it is the whole shape of a tensor.
    """

    axis: int | None = None
    depth: int = 0
    power: float = 0.0
    is_linear: bool = True
    entries: int | None = 1
    is_selected: bool = False
    is_places: bool = False
    is_shape: bool = False
    counted: int | None = None


SHARED = Followed()
Rule = Callable[[tf.Operation, Sequence[Followed]], Followed]


def rank_of(tensor: tf.Tensor) -> int:
    """Returns the number of axes of a tensor.

    Raises:
        NotFollowed: if it is not known.
    """
    if tensor.shape.rank is None:
        raise NotFollowed
    return tensor.shape.rank


def axes_of(operation: tf.Operation) -> set[int]:
    """Returns the axes over which an operation reduces its first operand, counted from 0.

    Raises:
        NotFollowed: if they are not known.
    """
    axes = tf.get_static_value(operation.inputs[1])
    if axes is None:
        raise NotFollowed
    return {int(axis) % max(rank_of(operation.inputs[0]), 1) for axis in axes.ravel()}


def moved(values: Followed, move: Callable[[int], int]) -> Followed:
    """Returns what is known of a tensor whose axis of the rows has become another one.

    Args:
        values: what was known before.
        move: returns the new axis for the axis of the rows.
    """
    return values if values.axis is None else dataclasses.replace(values, axis=move(values.axis))


def entries_of(given: Sequence[Followed]) -> int | None:
    """Returns the number of entries for each row that tensors with the same axis of rows have, if it is known."""
    return next((one.entries for one in given if one.axis is not None and one.entries is not None), None)
