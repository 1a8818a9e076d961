"""Notices that a program divides its losses for all replicas, while a step of `fit` or `evaluate` is traced.

These calls are noticed: tf.nn.compute_average_loss, tf.nn.scale_regularization_loss, and reading
`num_replicas_in_sync` of the strategy or the replica context in code that is not in an installed package. In such a
program, a tensor is a part if it is differentiated, or a result of the two functions, or explicitly divided by the
number of replicas: the sum of the replicas' parts is the value of the global batch.

Source: https://www.tensorflow.org/tutorials/distribute/custom_training asks programs to divide in this way.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._installed import is_installed_code
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch
from tfdist.keras_compat.losses.gradients_of_inputs import gradients_of_rows
from tfdist.keras_compat.losses.sums_in_steps import entries_and_seeds
from tfdist.keras_compat.losses.sums_over_rows import seeds_of_sums
from tfdist.keras_compat.losses.sums_taken_as_means import notice_sums
from tfdist.keras_compat.reached import reached

# Operations through which a part stays a part.
_LINEAR = ("Identity", "Cast", "AddV2", "Add", "AddN", "Sub", "Neg", "RealDiv", "Mul")


def note_division(by: str, result: Any = None) -> None:
    """Tells the rule of the current step that the program divides for all replicas.

    Args:
        by: the call by which the program divides, for the log.
        result: the divided tensor, if it is known.
    """
    batch = current_batch()
    if batch is not None:
        batch.rule.sees_division(by)
        if result is not None:
            batch.parts.append(result)


def is_part(value: Any, batch: GlobalBatch) -> bool:
    """Returns whether a tensor is a part, or a linear function of parts.

    Args:
        value: tensor of this replica.
        batch: the global batch of the step.
    """
    parts = {id(part) for part in batch.parts}

    def power(operation: tf.Operation) -> int:
        # Otherwise the program divides by calls that are noticed, and 0.5 is a factor of its own.
        return _power_of_replicas(operation) if batch.rule.may_divide_by_replicas else 0

    def terms(tensor: tf.Tensor) -> Sequence[tf.Tensor]:
        is_sum = id(tensor) not in parts and tensor.op.type in _LINEAR and power(tensor.op) == 0
        return tensor.op.inputs if is_sum else ()

    return any(id(one) in parts or (hasattr(one, "graph") and power(one.op) < 0) for one in reached(value, terms))


def _power_of_replicas(operation: tf.Operation) -> int:
    """Returns 1 if an operation multiplies by the number of replicas, -1 if it divides by that number, else 0."""
    if operation.type not in ("Mul", "RealDiv"):
        return 0
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    factors = [tf.get_static_value(one) for one in operation.inputs]
    if operation.type == "RealDiv":
        return -1 if _equals(factors[1], replicas) else 0
    return any(_equals(one, replicas) for one in factors) - any(_equals(one, 1 / replicas) for one in factors)


def _equals(value: Any, number: float) -> bool:
    return value is not None and np.ndim(value) == 0 and bool(np.isclose(float(value), number, rtol=1e-6, atol=0))


def watch_divisions() -> None:
    """Makes the calls that divide for all replicas known to `note_division`."""
    from tensorflow.python.distribute import distribute_lib
    from tensorflow.python.ops import nn_impl_distribute

    nn_impl_distribute.math_ops = _with_noted_sums(nn_impl_distribute.math_ops)
    tf.nn.compute_average_loss = _with_global_batch_size(tf.nn.compute_average_loss)
    for owner in (distribute_lib.StrategyBase, distribute_lib.ReplicaContextBase):
        owner.num_replicas_in_sync = property(_noted_read(owner.num_replicas_in_sync.fget))
    tf.GradientTape.gradient = _with_noted_targets(tf.GradientTape.gradient)


def _with_noted_sums(math_ops: types.ModuleType) -> types.ModuleType:
    """Returns a copy of the module of mathematical operations whose reduce_sum is noticed.

    The copy is only used by compute_average_loss and scale_regularization_loss, which sum before they divide. A
    program may have imported the two functions before, so that the functions themselves cannot be replaced.
    """
    noted = types.ModuleType(math_ops.__name__)
    vars(noted).update(vars(math_ops))

    def reduce_sum(*args: Any, **kwargs: Any) -> tf.Tensor:
        result = math_ops.reduce_sum(*args, **kwargs)
        note_division(f"tf.nn.{sys._getframe(1).f_code.co_name}", result)
        return result

    noted.reduce_sum = reduce_sum  # type: ignore[attr-defined]
    return noted


def _with_global_batch_size(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> Any:
        batch = current_batch()
        if batch is not None and global_batch_size is None:
            # The stock default is the rows of this replica times the number of replicas: wrong for an uneven batch.
            global_batch_size = tf.cast(batch.total, tf.int32)
        return stock(per_example_loss, sample_weight=sample_weight, global_batch_size=global_batch_size)

    return compute_average_loss


def _noted_read(stock: Callable) -> Callable:
    def num_replicas_in_sync(self: Any) -> int:
        replicas = stock(self)
        reader = sys._getframe(1)
        # A function that AutoGraph has converted is in a file of its own, but has the names of its module.
        file = reader.f_globals.get("__file__") or reader.f_code.co_filename
        # Packages read the number of replicas for reasons of their own.
        batch = current_batch()
        if batch is not None and not is_installed_code(file):
            batch.rule.may_divide_by_replicas = True
            note_division(f"num_replicas_in_sync is read in {reader.f_code.co_name}, line {reader.f_lineno}")
        return replicas

    return num_replicas_in_sync


def _with_noted_targets(stock: Callable) -> Callable:
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(self, target, sources, output_gradients, unconnected_gradients)
        targets = [one for one in tf.nest.flatten(target) if tf.is_tensor(one)]
        batch.parts.extend(targets)
        found = entries_and_seeds(target, sources, batch, stock) if output_gradients is None else None
        if found is not None:
            return stock(self, found[0], sources, found[1], unconnected_gradients)
        # With other output gradients, a sum may become a mean.
        if output_gradients is None and any(hasattr(one, "assign") for one in tf.nest.flatten(sources)):
            notice_sums(targets, batch)
        seeds = seeds_of_sums(target, sources, output_gradients, batch)
        gradients = stock(self, target, sources, seeds, unconnected_gradients)
        return gradients_of_rows(target, sources, gradients, batch)

    gradient.__doc__ = stock.__doc__
    return gradient
