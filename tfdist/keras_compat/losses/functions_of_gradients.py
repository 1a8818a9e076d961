"""What a step computes from its gradients, such as a clipped gradient or its norm, computed from those of all replicas.

A step may do more with a gradient than give it to an optimizer: clip it, divide it by its norm, subtract it from a
weight, add it to an accumulator, log how large it is. Of the gradient of one replica this is not what a single device
computes. Here the gradients of all replicas are added up first, and the operations of the program computed again. As
all replicas then have the same operands, every operation may take part, if it has no state and is not computed from
the rows of the replica.

A linear function, such as a gradient that is scaled or centralized, can be added up afterwards, as a gradient is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.computed_again import TooManyOperations, again, in_order
from tfdist.keras_compat.losses.global_batch import GlobalBatch, works_alone
from tfdist.keras_compat.losses.noted_gradients import Kind, NotedGradients, parts_of
from tfdist.keras_compat.reached import captured, outermost

# Some for each weight. What is computed from rows is given up at the first of them.
_MOST_OPERATIONS = 100_000
# Operations that read variables, which are the same on all replicas.
_READS = ("Const", "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VariableShape")
# Operations that have state, but only look at their operand.
_CHECKS = ("CheckNumerics", "CheckNumericsV2")
# Operations that are linear in their first operand, those of single entries first; in all; and in one of two.
_OF_ENTRIES = ("Cast", "DivNoNan", "Identity", "Neg", "RealDiv", "StopGradient")
_OF_FIRST = ("ExpandDims", "Mean", "Reshape", "Squeeze", "StridedSlice", "Sum", "Transpose", "Unpack")
_TERMS = ("Add", "AddN", "AddV2", "Sub")
_PRODUCTS = ("BatchMatMulV2", "MatMul", "Mul", "MulNoNan")


class _OfRows(Exception):
    """A tensor is computed from rows of the replica, or by an operation with state."""


def of_all_replicas(values: Sequence[Any], batch: GlobalBatch, *, least: Kind) -> list[Any]:
    """Returns tensors that are computed from gradients for the global batch, the same on all replicas.

    Args:
        values: tensors and IndexedSlices of this replica, or other objects.
        batch: the global batch of the step.
        least: the kind from which on values are returned, in the order of `Kind`; those before it only if their
            gradients have been added up already.

    Returns:
        For each of the values its value for the global batch; None if it is not computed from gradients in such a way,
        or if that is not known.
    """
    noted = batch.gradients
    if not noted.groups or works_alone():
        return [None] * len(values)
    return [_of_all(value, batch, noted, least) for value in values]


def kind_of(value: Any, batch: GlobalBatch) -> Kind | None:
    """Returns how a tensor is computed from gradients; None if it is also computed from the rows of the replica.

    Args:
        value: tensor or IndexedSlices of this replica.
        batch: the global batch of the step.
    """
    parts = parts_of(value)
    if not all(hasattr(one, "graph") for one in parts):
        return None
    kind, *others = [_kind_of(one, batch, batch.gradients) for one in parts]
    return None if None in others else kind


def _of_all(value: Any, batch: GlobalBatch, noted: NotedGradients, least: Kind) -> Any:
    kind = None if value is None else kind_of(value, batch)
    if kind is None or kind is Kind.SHARED:
        return None
    parts = parts_of(value)
    if kind < least and not all(id(one) in noted.of_all for one in parts):
        return None
    new = [_computed(one, batch, noted) for one in parts]
    return tf.IndexedSlices(*new, value.dense_shape) if isinstance(value, tf.IndexedSlices) else new[0]


def _kind_of(value: tf.Tensor, batch: GlobalBatch, noted: NotedGradients) -> Kind | None:
    graph = batch.graph
    if not _is_within(value.graph, getattr(batch.rows, "graph", None)):
        return None
    totals = {id(one) for one in batch.totals}

    def is_known(tensor: tf.Tensor) -> bool:
        if id(tensor) not in noted.kinds and (tensor.dtype == tf.resource or id(tensor) in totals):
            noted.kinds[id(tensor)] = (tensor, Kind.SHARED)
        return id(tensor) in noted.kinds

    try:
        for operation in in_order([value], is_known, _MOST_OPERATIONS):
            handles = {id(outermost(one)) for one in operation.inputs if one.dtype == tf.resource}
            if handles & noted.own.keys() or (handles & noted.parts.keys() and operation.graph is not graph):
                raise _OfRows
            if handles & noted.parts.keys():
                noted.note([operation.outputs[0]], graph)
            if operation.type == "Placeholder":
                kind = _of_outside(operation.outputs[0], batch, noted)
            else:
                _refuse_lengths(operation, noted)
                kind = _followed(operation, [noted.kinds[id(one)][1] for one in operation.inputs])
            for one in operation.outputs:
                noted.kinds.setdefault(id(one), (one, kind))
    except (_OfRows, TooManyOperations):
        return None
    return noted.kinds[id(value)][1]


def _refuse_lengths(operation: tf.Operation, noted: NotedGradients) -> None:
    """Refuses operands that have an entry for each slice of this replica: of all replicas there are more."""
    if not any(id(one) in noted.sliced for one in operation.inputs):
        return
    if operation.type != "UnsortedSegmentSum":
        noted.sliced |= {id(one) for one in operation.outputs if one.shape.rank != 0}
    for operand in operation.inputs:
        if noted.kinds[id(operand)][1] is Kind.SHARED and operand.shape.rank:
            numbers = tf.get_static_value(operand) if operand.dtype in (tf.int32, tf.int64) else None
            if {operand.shape[0], *(() if numbers is None else numbers.ravel().tolist())} & noted.lengths:
                raise _OfRows


def _is_within(graph: Any, outer: Any) -> bool:
    """Returns whether a graph is that of the step, or of a branch of it."""
    while graph is not None and graph is not outer:
        graph = getattr(graph, "outer_graph", None)
    return graph is not None


def _of_outside(placeholder: tf.Tensor, batch: GlobalBatch, noted: NotedGradients) -> Kind:
    """Returns what is known of a tensor that a branch, or the step, takes from outside of it."""
    outer = captured(placeholder)
    kind = Kind.SHARED if outer is not None and not hasattr(outer, "graph") else None
    if outer is not None and kind is None:
        kind = _kind_of(outer, batch, noted)
    if kind is None:
        raise _OfRows
    return kind


def _followed(operation: tf.Operation, given: Sequence[Kind]) -> Kind:
    kind = operation.type
    most = max(given, default=Kind.SHARED)
    if "replica_id_in_sync_group" in operation.name and kind == "Const":
        raise _OfRows
    if operation.op_def.is_stateful and kind not in _CHECKS and (kind not in _READS or most):
        raise _OfRows
    if not most:
        return most
    first, *others = given
    if kind == "UnsortedSegmentSum" and first is Kind.SLICES:
        # A dense tensor of IndexedSlices.
        return Kind.LINEAR
    is_of_first = not any(others) and operation.outputs[0].dtype.is_floating
    if kind in _OF_ENTRIES and is_of_first:
        return first
    if kind == "Mul" and min(given) is Kind.SHARED:
        return most
    if Kind.SLICES in given:
        return Kind.OTHER
    if kind in _OF_FIRST and is_of_first:
        return first
    if kind in _TERMS:
        return max(most, Kind.AFFINE) if min(given) is Kind.SHARED else most
    if kind in _PRODUCTS and min(given) is Kind.SHARED:
        return most
    return Kind.OTHER


def _computed(value: tf.Tensor, batch: GlobalBatch, noted: NotedGradients) -> tf.Tensor:
    def is_there(tensor: tf.Tensor) -> bool:
        if noted.kinds[id(tensor)][1] is Kind.SHARED:
            return True
        if id(tensor) not in noted.of_all:
            group, outer = noted.group_of(tensor), _captured_by_branch(tensor)
            if group is not None:
                # Replicas cannot wait for each other within a branch of their own.
                with batch.graph.as_default():
                    _add_up(group, batch, noted)
            elif outer is not None:
                with _graph_for(outer.graph, batch).as_default():
                    noted.of_all[id(tensor)] = _computed(outer, batch, noted)
        return id(tensor) in noted.of_all

    for operation in list(in_order([value], is_there, _MOST_OPERATIONS)):
        operands = [noted.of_all.get(id(one), one) for one in operation.inputs]
        with _graph_for(operation.graph, batch).as_default():
            new = again(operation, operands)
        noted.of_all.update(zip(map(id, operation.outputs), new, strict=True))
    return noted.of_all.get(id(value), value)


def _graph_for(graph: Any, batch: GlobalBatch) -> Any:
    """Returns the graph in which an operation of a graph is computed again.

    What a branch of all replicas takes from the step is computed again in the branch, in which they add up.
    """
    return graph if _is_within(graph, batch.graph) else batch.graph


def _captured_by_branch(tensor: tf.Tensor) -> tf.Tensor | None:
    return captured(tensor) if tensor.op.type == "Placeholder" else None


def _add_up(group: Sequence[Any], batch: GlobalBatch, noted: NotedGradients) -> None:
    """Adds up the gradients of one call of a tape over all replicas, in as few sums as a step of an optimizer."""
    weighted = [batch.times_share(one) if batch.is_replica_mean else one for one in group]
    for own, total in zip(group, sum_gradients(weighted), strict=True):
        for part, new in zip(parts_of(own), parts_of(total), strict=True):
            noted.of_all[id(part)] = new
            noted.kinds[id(new)] = (new, Kind.SHARED)
