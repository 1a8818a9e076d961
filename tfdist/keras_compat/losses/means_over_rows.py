"""Finds means over the rows of a replica in the graph of a step.

A mean over all rows is the average of the replicas' means, weighted by their rows. So is a linear function of means,
also if means are stacked, concatenated or sliced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.divided_sums import counts_rows
from tfdist.keras_compat.losses.first_axis import depends_on_batch, is_of_rows
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.rows_in_another_shape import holds_rows, is_longer_by_rows
from tfdist.keras_compat.reached import reached
from tfdist.keras_compat.version import keras_in_use

# Operations through which a mean stays one, up to a factor, or has another shape.
_LINEAR = ("Identity", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "RealDiv", "DivNoNan", "Mul", "MulNoNan")
_SHAPED = ("Squeeze", "Reshape", "ExpandDims")
# A standard deviation, as of BatchNormalization; a value where a condition holds; and what changes no value.
_NEARLY = ("Sqrt", "SelectV2", "StopGradient", "PreventGradient", "EnsureShape")
_KNOWN = ("Const", "ReadVariableOp")
# Operations whose entries are those of their first operand, or sums of them; and those that put operands together.
_TAKEN = ("Squeeze", "Reshape", "ExpandDims", "Transpose", "StridedSlice", "Slice", "GatherV2", "Unpack", "Sum", "Mean")
_UNCHANGED = ("Identity", "Cast", "Neg", "StopGradient", "PreventGradient", "EnsureShape")
_ADDED = ("AddV2", "Add", "AddN", "Sub")
_JOINED = ("Pack", "ConcatV2")
_PRODUCTS = ("Mul", "MulNoNan")
# Operations with known limits: within these a value stays as it is.
_CLIPPED = ("Maximum", "Minimum", "ClipByValue", "Relu")
_DIVISIONS = ("RealDiv", "DivNoNan")
_FOLLOWED = frozenset((*_TAKEN, *_UNCHANGED, *_ADDED, *_JOINED, *_PRODUCTS, *_CLIPPED, *_DIVISIONS, "SelectV2"))


def is_mean_over_rows(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether a scalar is a mean over the rows of a replica, or a linear function of such means and others.

    So is a mean that is clipped, or that is replaced where it is not finite.

    Args:
        value: tensor of this replica.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(value) or value.shape.rank != 0:
        return False
    means, finder = {id(mean) for mean in batch.means}, SumsAndMeans(batch, in_shapes=True)
    if any(id(one) in means or finder.is_mean(one) for one in reached(value, _terms)):
        return True
    return hasattr(value, "graph") and _is_linear_in_means(value, finder, clipped=True)


def are_means_over_rows(values: Any, batch: GlobalBatch) -> bool:
    """Returns whether each entry of a vector or matrix is a mean over the rows of a replica, such as one for a feature.

    So is each entry of a list of such means, and of a linear function of it.

    Args:
        values: tensor of this replica, of rank 1 or more. A first axis of unknown length is that of the rows.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(values) or not values.shape.rank or values.shape[0] is None:
        return False
    # What is not sure to be a mean over rows is taken as a value for each row.
    finder = SumsAndMeans(batch, by_origin=True)
    return finder.are_means(values) or _is_linear_in_means(values, finder)


def is_made_of_means(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether a tensor has a mean over rows among its terms, and none that has an entry for each row.

    The answer does not depend on the numbers of rows, so that all replicas and workers find the same.

    Args:
        value: tensor of this replica, of any shape.
        batch: the global batch of the step.
    """
    finder = SumsAndMeans(batch, by_length=False, by_origin=True)

    def terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
        if finder.is_mean(tensor):
            return ()
        return tensor.op.inputs if tensor.op.type in _NEARLY else _terms(tensor)

    if not tf.is_tensor(value) or not hasattr(value, "graph"):
        return False
    found = list(reached(value, terms))
    others = [one for one in found if not finder.is_mean(one)]
    leaves = [one for one in others if not terms(one)]
    has_mean = len(others) < len(found)
    if has_mean and not any(_has_entries_of_rows(one, value, finder) for one in leaves):
        return True
    return _is_linear_in_means(value, finder)


def has_rows(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether the first axis of a tensor may be that of the rows of a replica.

    Args:
        value: tensor of this replica, or something else, which has no rows.
        batch: the global batch of the step.
    """
    if not tf.is_tensor(value) or hasattr(value, "assign") or not value.shape.rank:
        return False
    return value.shape[0] in (None, batch.static_rows)


def _has_entries_of_rows(term: tf.Tensor, value: tf.Tensor, finder: SumsAndMeans) -> bool:
    """Returns whether a term may give each entry of a value its own number, which comes from the rows of the batch."""
    is_whole = term.shape.rank == value.shape.rank != 0 and term.shape.num_elements() != 1
    return is_whole and term.dtype.is_floating and hasattr(term, "graph") and depends_on_batch(term, finder.is_mean)


def _is_linear_in_means(value: tf.Tensor, finder: SumsAndMeans, *, clipped: bool = False) -> bool:
    """Returns whether each entry of a tensor is a linear function of means over rows, with known factors.

    Means may be stacked, concatenated and sliced: there is nothing else of the batch that could have an entry for each
    row.

    Args:
        value: tensor of a graph.
        finder: finds means.
        clipped: whether a mean may be clipped, or replaced by a known value.
    """
    means, known = {id(mean) for mean in finder.batch.means}, dict[int, bool]()

    def is_mean(tensor: tf.Tensor) -> bool:
        # A loss that is not reduced has an entry for each row.
        return (id(tensor) in means and tensor.shape.rank == 0) or finder.is_mean(tensor)

    def varies(tensor: tf.Tensor) -> bool:
        if id(tensor) not in known:
            known[id(tensor)] = depends_on_batch(tensor)
        return known[id(tensor)]

    def terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
        kind, operands = tensor.op.type, list(tensor.op.inputs)
        # To find out what a tensor depends on takes longest.
        if kind not in _FOLLOWED or not tensor.dtype.is_floating or is_mean(tensor) or not varies(tensor):
            return ()
        if kind in _ADDED:
            return operands
        if kind in _JOINED:
            return [one for one in operands if one.dtype == tensor.dtype]
        varying = [place for place, one in enumerate(operands) if varies(one)]
        if clipped and kind == "SelectV2":
            return [operands[place] for place in varying if place > 0]
        is_scaled = len(varying) == 1 and (kind in _PRODUCTS or (clipped and kind in _CLIPPED))
        is_taken = varying == [0] and kind in (*_TAKEN, *_UNCHANGED, *_DIVISIONS)
        return [operands[varying[0]]] if is_scaled or is_taken else ()

    has_mean = False
    for one in reached(value, terms):
        if hasattr(one, "graph") and terms(one):
            continue
        if is_mean(one):
            has_mean = True
        elif varies(one):
            return False
    return has_mean


def _terms(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    # Keras 2 adds up the only entry of a scalar.
    is_scalar = tensor.op.type == "Sum" and tensor.op.inputs[0].shape.rank == 0
    if is_scalar or tensor.op.type in _SHAPED:
        return tensor.op.inputs[:1]
    return tensor.op.inputs if tensor.op.type in _LINEAR else ()


@dataclasses.dataclass(frozen=True)
class SumsAndMeans:
    """Looks at single tensors of a graph, and remembers what it has found.

    Attributes:
        batch: the global batch of the step.
        by_length: whether an axis of rows has as many entries as the replica has rows, if both numbers are known.
        by_origin: whether it has to be sure that an axis is that of the rows.
        in_shapes: whether the rows may be found in another shape, such as all tokens of the rows along one axis.
    """

    batch: GlobalBatch
    by_length: bool = True
    by_origin: bool = False
    in_shapes: bool = False
    known: dict[int, bool] = dataclasses.field(default_factory=dict)

    def is_mean(self, value: tf.Tensor) -> bool:
        """Returns whether a tensor is a mean over rows, or a sum over other axes of such means."""
        if self._is_plain(value):
            return True
        return hasattr(value, "graph") and value.op.type == "Sum" and self.are_means(value.op.inputs[0])

    def are_means(self, values: tf.Tensor) -> bool:
        """Returns whether each entry of a tensor is a mean over rows."""

        def terms(tensor: tf.Tensor) -> list[tf.Tensor]:
            if self._is_plain(tensor):
                return []
            if tensor.op.type == "Sum":
                return tensor.op.inputs[:1]
            # A factor or a term that is broadcast does not decide what the axes are.
            is_shaped = tensor.op.type in _SHAPED
            return [one for one in _terms(tensor) if is_shaped or one.shape.rank == tensor.shape.rank]

        leaves = [one for one in reached(values, terms) if not hasattr(one, "graph") or not terms(one)]
        found = [self._is_plain(one) for one in leaves]
        return any(found) and all(is_mean or _is_known(one) for is_mean, one in zip(found, leaves, strict=True))

    def _is_plain(self, value: tf.Tensor) -> bool:
        if id(value) not in self.known:
            self.known[id(value)] = self._find(value)
        return self.known[id(value)]

    def _find(self, value: tf.Tensor) -> bool:
        if not hasattr(value, "graph") or not value.op.inputs:
            return False
        if value.op.type == "Mean":
            return self._is_over_rows(value.op)
        if value.op.type in _DIVISIONS and (self._counts_rows(value.op.inputs[1]) or _is_loss_of_keras2(value.op)):
            return any(self.is_sum(one) for one in reached(value.op.inputs[0], _terms))
        return False

    def is_sum(self, value: tf.Tensor) -> bool:
        """Returns whether a tensor is a sum over rows."""
        if not hasattr(value, "graph"):
            return False
        if value.op.type == "L2Loss":
            return self._has_rows(value.op.inputs[0])
        if value.op.type == "MatMul" and self.by_origin:
            # The products of the entries of each row, as for a covariance.
            return value.op.get_attr("transpose_a") and all(self._has_rows(one) for one in value.op.inputs)
        if value.op.type == "Einsum":
            return self._adds_rows(value.op)
        return value.op.type == "Sum" and self._is_over_rows(value.op)

    def _adds_rows(self, einsum: tf.Operation) -> bool:
        """Returns whether the axes over which a product is added up include that of the rows."""
        operands, result = einsum.get_attr("equation").decode().split("->")
        first = [labels[:1] for labels in operands.split(",")]
        with_rows = [self._has_rows(one) for one in einsum.inputs]
        return any(rows and label not in result for label, rows in zip(first, with_rows, strict=True))

    def _is_over_rows(self, operation: tf.Operation) -> bool:
        """Returns whether the axes of a mean or a sum include that of the rows."""
        operand, given = operation.inputs
        axes = tf.get_static_value(given)
        if self.in_shapes and operand.shape.rank and axes is not None:
            is_whole = len(set(axes.ravel() % operand.shape.rank)) == operand.shape.rank
            if is_whole and holds_rows(operand, self._has_rows):
                return True
        if not self._has_rows(operand) and not self._is_longer(operand):
            return False
        return axes is None or 0 in axes.ravel() % operand.shape.rank

    def _has_rows(self, value: tf.Tensor) -> bool:
        if not value.shape.rank or (self.by_length and not has_rows(value, self.batch)):
            return False
        return not self.by_origin or is_of_rows(value)

    def _is_longer(self, value: tf.Tensor) -> bool:
        return self.in_shapes and bool(value.shape.rank) and is_longer_by_rows(value, self._has_rows)

    def _counts_rows(self, number: tf.Tensor) -> bool:
        return counts_rows(number, self.batch.static_rows, by_length=self.by_length)


def _is_known(value: tf.Tensor) -> bool:
    return hasattr(value, "graph") and value.op.type in _KNOWN


def _is_loss_of_keras2(division: tf.Operation) -> bool:
    """Returns whether a division is that of a Loss of Keras 2, which adds up twice before it divides by the entries.

    If the number of entries is known, it is a constant as any other.
    """
    total = division.inputs[0]
    if (
        keras_in_use().is_keras3
        or not hasattr(total, "graph")
        or total.op.type != "Sum"
        or total.op.inputs[0].op.type != "Sum"
    ):
        return False
    # A scalar that the program itself has added up has one entry.
    values, is_scalar = total.op.inputs[0].op.inputs[0], total.op.inputs[0].shape.rank == 0
    entries = values.shape.num_elements() if is_scalar and values.shape.rank else None
    return entries is not None and tf.get_static_value(division.inputs[1]) == entries
