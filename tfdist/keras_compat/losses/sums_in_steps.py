"""Scalars of a step that are functions of sums over rows, for the global batch.

A compiled loss or metric may be such a function. A train_step may compute one itself, differentiate it, count it in a
Mean and return it, and a layer may add one with add_loss. They are followed to the data of the step and to the outputs
of layers, whose first axis is that of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.first_axis import is_of_rows
from tfdist.keras_compat.losses.following_rows.followed import Followed
from tfdist.keras_compat.losses.functions_of_gradients import of_all_replicas
from tfdist.keras_compat.losses.functions_of_sums import FunctionOfSums, function_of_sums
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch, works_alone
from tfdist.keras_compat.losses.noted_gradients import Kind
from tfdist.keras_compat.reached import outermost


def value_of_global_batch(value: Any, batch: GlobalBatch) -> tf.Tensor | None:
    """Returns a scalar that is a function of sums over rows for the global batch, the same on all replicas.

    Args:
        value: a scalar that a step, a loss, a metric or a layer has computed on this replica.
        batch: the global batch of the step.

    Returns:
        None if the value is no such function, or if that is not known, so that it counts with the replica's rows.
    """
    if id(value) not in batch.functions:
        exact = _of_gradients(value, batch)
        function = _function(value, batch) if exact is None else None
        batch.functions[id(value)] = (value, function.compute() if function else exact)
    return batch.functions[id(value)][1]


def entries_and_seeds(
    target: Any, sources: Any, batch: GlobalBatch, gradient: Callable
) -> tuple[Sequence[tf.Tensor], Sequence[Any]] | None:
    """Returns what a gradient has to start from, so that it is that of the value of the global batch.

    Args:
        target: what is differentiated.
        sources: the variables with respect to which it is differentiated. Only such gradients are added up.
        batch: the global batch of the step.
        gradient: stock `tf.GradientTape.gradient`.

    Returns:
        Tensors that the step has computed, and the gradients of the global value with respect to them; None if the
        target is no function of sums over rows.
    """
    if not tf.is_tensor(target) or not all(hasattr(one, "assign") for one in tf.nest.flatten(sources)):
        return None
    function = _function(target, batch)
    if function is None:
        return None
    entries = function.entries()
    with tf.GradientTape() as tape:
        tape.watch(entries)
        value = function.compute()
    batch.functions[id(target)] = (target, value)
    pairs = [(one, seed) for one, seed in zip(entries, gradient(tape, value, entries), strict=True) if seed is not None]
    return [one for one, _ in pairs], [tf.convert_to_tensor(seed) for _, seed in pairs]


def _of_gradients(value: Any, batch: GlobalBatch) -> tf.Tensor | None:
    """Returns a tensor that is computed from gradients, such as their norm, for the global batch."""
    if not isinstance(value, tf.Tensor):
        return None
    return of_all_replicas([value], batch, least=Kind.OTHER if batch.is_replica_mean else Kind.LINEAR)[0]


def _function(value: Any, batch: GlobalBatch) -> FunctionOfSums | None:
    if not batch.is_replica_mean or works_alone():
        return None

    def source(tensor: tf.Tensor) -> Followed | None:
        # A branch has captured the data of the step.
        tensor = outermost(tensor)
        return _rows_of(tensor, batch) if id(tensor) in batch.outputs else None

    return function_of_sums(value, source, batch)


def _rows_of(tensor: tf.Tensor, batch: GlobalBatch) -> Followed | None:
    """Returns what is known of the data of a step, or of the output of a layer; None if it may have no rows."""
    if not tensor.shape.rank or not is_of_rows(tensor):
        return None
    length, rows = tensor.shape[0], batch.static_rows
    if length is None:
        return Followed(axis=0, entries=None if rows else 1)
    # A tensor of shape (1,) may be the loss of a model.
    if not rows or not length or length % rows or (tensor.shape.rank == length == 1):
        return None
    return Followed(axis=0, entries=length // rows) if rows > 1 or length == 1 else None


def with_noted_outputs(stock: Callable) -> Callable:
    """Returns the `__call__` of a layer, which makes its outputs known to the global batch of the step."""

    @functools.wraps(stock)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = stock(self, *args, **kwargs)
        batch = current_batch()
        if batch is not None:
            batch.note_outputs(outputs)
        return outputs

    return call
