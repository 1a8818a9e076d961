"""Mends what a step computes from its gradients before it gives them to an optimizer, or without one.

TensorFlow adds gradients up in the optimizer. A step that clips them itself clips those of each replica; one that
subtracts them from a weight, or adds them to an accumulator, gives each replica a model of its own, and workers end
with different models. With the mend these are computed from the gradients of the global batch, as on one device (see
functions_of_gradients.py), also within a `tf.cond`. Gradients of a tape within a `tf.function` or a loop of the step
are not seen, and neither are those of a step without a graph.

Source: tensorflow/python/distribute/values.py, _on_write_update_replica. No upstream issue is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.functions_of_gradients import kind_of, of_all_replicas
from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.keras_compat.losses.noted_gradients import Kind
from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from tensorflow.python.distribute import values

    # Without aggregation only the replica's own copy is assigned.
    return "NONE" in values._on_write_update_replica.__code__.co_names


def _noting(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = stock(self, target, sources, *args, **kwargs)
        batch = current_batch()
        if batch is not None:
            pairs = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=True)
            of_variables = [one for one, source in pairs if hasattr(source, "assign")]
            batch.gradients.note(of_variables, batch.graph)
        return gradients

    return gradient


def _for_all_replicas(variable: Any, value: Any) -> Any:
    """Returns what all replicas assign to a variable, if it is computed from gradients; else None."""
    batch = current_batch()
    # Of the aggregation "sum" each replica assigns its part.
    if batch is None or variable.aggregation == tf.VariableAggregation.SUM or not tf.is_tensor(value):
        return None
    noted, kind = batch.gradients, kind_of(value, batch)
    handles = {id(part.handle): part.handle for part in getattr(variable, "values", None) or [variable._v]}
    for of_before in (noted.parts, noted.own):
        for number in handles:
            of_before.pop(number, None)
    if kind is None:
        noted.own.update(handles)
    # A program that divides for all replicas adds up its parts in an optimizer, also those of earlier steps.
    elif kind in (Kind.LINEAR, Kind.AFFINE) and not variable.trainable and not batch.is_replica_mean:
        noted.parts.update(handles)
        return None
    return of_all_replicas([value], batch, least=Kind.SLICES)[0]


def _assigning(stock: Callable) -> Callable:
    def update_replica(variable: Any, update: Callable, value: Any, **kwargs: Any) -> Any:
        exact = _for_all_replicas(variable, value)
        return stock(variable, update, value if exact is None else exact, **kwargs)

    return update_replica


def _assigning_one(stock: Callable) -> Callable:
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        exact = None if tf.distribute.in_cross_replica_context() else _for_all_replicas(self, value)
        if exact is not None and self._aggregation == tf.VariableAggregation.NONE:
            # TensorFlow refuses this assignment on a replica. All replicas assign the same.
            self._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        return stock(self, value if exact is None else exact, *args, **kwargs)

    return assign


def _apply() -> None:
    from tensorflow.python.distribute import ps_values, values

    tf.GradientTape.gradient = _noting(tf.GradientTape.gradient)
    values._on_write_update_replica = _assigning(values._on_write_update_replica)
    # The variables of central storage.
    for name in ("assign", "assign_add", "assign_sub"):
        stock = getattr(ps_values.AggregatingVariable, name)
        setattr(ps_values.AggregatingVariable, name, _assigning_one(stock))


MEND = Mend(
    name="gradients_used_by_the_step",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a `train_step` that clips gradients itself clips those of each replica, and one that subtracts them from "
    "weights without an optimizer gives each replica and each worker another model",
    without_row="the public program own_updates shows it",
)
