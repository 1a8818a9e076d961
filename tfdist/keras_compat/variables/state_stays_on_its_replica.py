"""Averages state that a layer or a `train_step` computes from the rows of its replica, such as a running mean.

A variable without aggregation, the default of `add_weight` and tf.Variable, may be assigned by each replica, and then
has another value on each of them: evaluation depends on which replica has a row, workers end with different models, and
the first replica's value is saved. If the assigned value is a linear function of means over rows, which may be stacked,
concatenated and sliced, all replicas get the average of the replicas' values, weighted by rows, at the end of the step:
the value of one device. All other state stays as it is, such as the state of a recurrent layer, which belongs to rows,
or a queue of rows. What is computed without a graph, with run_eagerly=True, stays too.

Source: tensorflow/python/distribute/values.py, _on_write_update_replica. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch
from tfdist.keras_compat.losses.means_over_rows import is_made_of_means
from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from tensorflow.python.distribute import values

    # Without aggregation only the replica's own copy is assigned.
    return "NONE" in values._on_write_update_replica.__code__.co_names


def average_state(batch: GlobalBatch) -> None:
    """Gives all replicas the average of the variables that the step has assigned; called in replica context.

    Args:
        batch: the global batch of the step.
    """
    # Only a replica that traces a function in the step sees what is assigned there. All replicas wait for each other
    # here, so that each of them knows what the others have seen, and all make the same sum. With GPUs TensorFlow sums
    # without merge_call, which a step that XLA compiles cannot call.
    context = tf.distribute.get_replica_context()
    if context.strategy.extended._use_merge_call():
        context.merge_call(lambda strategy: None)
    variables = list(batch.rule.averaged.values())
    if not variables:
        return
    own = [tf.convert_to_tensor(variable) for variable in variables]
    # A mean over no rows is NaN.
    sums = sum_gradients([tf.math.multiply_no_nan(value, batch.share(value.dtype)) for value in own])
    for variable, value, total in zip(variables, own, sums, strict=True):
        variable.assign(tf.where(batch.total > 0, total, value))


def _noting(stock: Callable) -> Callable:
    def update_replica(variable: Any, update: Callable, value: Any, **kwargs: Any) -> Any:
        batch = current_batch()
        if batch is not None and isinstance(value, (list, tuple)):
            # Of a list it is not seen what its entries are computed from.
            value = tf.convert_to_tensor(value, variable.dtype)
        if (
            batch is not None
            and variable.aggregation == tf.VariableAggregation.NONE
            and variable.dtype.is_floating
            and is_made_of_means(value, batch)
        ):
            batch.rule.averaged[id(variable)] = variable
        return stock(variable, update, value, **kwargs)

    return update_replica


def _apply() -> None:
    from tensorflow.python.distribute import values

    values._on_write_update_replica = _noting(values._on_write_update_replica)


MEND = Mend(
    name="state_stays_on_its_replica",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a running mean that a layer of one's own assigns differs between replicas, so that evaluation depends on "
    "the replica and workers end with different models",
    without_row="the public program running_means shows it",
)
