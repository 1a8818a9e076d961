"""Mends the wait for the data of other workers, which has no deadline.

Before each step, the workers add up how many replicas have a batch, so that all workers end an epoch at the same step.
If the pipeline of a worker delivers nothing, the other workers wait in this sum for ever and in silence. With the mend
the sum has the deadline of its strategy, AllReduceOptions.timeout_seconds.

Source: `_calculate_replicas_with_values` in TensorFlow's distribute/input_lib.py, which sums without a timeout.
tfdist/allreduce/deadline.py explains why TensorFlow's own timeout is not used. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from tfdist.allreduce.deadline import deadline_of
from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from tensorflow.python.distribute import input_lib

    return "timeout" not in inspect.getsource(input_lib._calculate_replicas_with_values)


def _needed_by(strategy: tf.distribute.Strategy) -> bool:
    return deadline_of(strategy) is not None


def _apply() -> None:
    from tensorflow.python.distribute import input_lib

    stock = input_lib._calculate_replicas_with_values

    def calculate_replicas_with_values(strategy: Any, input_workers: Any, optional_list: Any) -> tf.Tensor:
        deadline = deadline_of(strategy)
        if deadline is None:
            return stock(strategy, input_workers, optional_list)
        own = [optional.has_value() for optionals in optional_list for optional in optionals]
        total: list[tf.Tensor] = []
        with deadline.over_batch(own, total):
            total.append(stock(strategy, input_workers, optional_list))
        return total[0]

    input_lib._calculate_replicas_with_values = calculate_replicas_with_values


MEND = Mend(
    name="data_awaited_without_deadline",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a worker waits for ever, and in silence, for the data of a worker whose pipeline delivers nothing",
    without_row="the pipelines of all workers of a row deliver",
    needed_by=_needed_by,
)
