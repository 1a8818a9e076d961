"""Mends Keras 2's optimizers, whose sums of gradients over workers have no deadline.

If a worker is alive but does not take part in a sum, the other workers wait for ever. With the mend, the sums of Keras
2's optimizers have the deadline of their strategy, AllReduceOptions.timeout_seconds. For Keras 3's optimizers and for
DistributedOptimizer, tfdist itself computes the sums; these sums have the deadline without the mend.

Source: all_reduce_sum_gradients in Keras 2, which sums without a timeout. tfdist/allreduce/deadline.py explains why
TensorFlow's own timeout is not used. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce.deadline import deadline_of, within_deadline
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    return "timeout" not in inspect.getsource(tf.keras.optimizers.Optimizer.aggregate_gradients)


def _needed_by(strategy: tf.distribute.Strategy) -> bool:
    return deadline_of(strategy) is not None


def _with_deadline(stock: Callable) -> Callable:
    def aggregate(self: Any, grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        sums: list[Any] = []
        with within_deadline([gradient for gradient, _ in pairs], sums):
            summed = list(stock(self, pairs))
            sums += [gradient for gradient, _ in summed]
        return summed

    return aggregate


def _apply() -> None:
    patch_method(tf.keras.optimizers.Optimizer, "aggregate_gradients", _with_deadline)
    patch_method(tf.keras.optimizers.legacy.Optimizer, "_aggregate_gradients", _with_deadline)


MEND = Mend(
    name="sums_without_deadline",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a sum of gradients waits for ever for a worker that is alive but does not take part",
    without_row="all workers of a row take part",
    needed_by=_needed_by,
)
