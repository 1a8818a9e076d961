"""Lets a step update variables in a `tf.cond`, such as one that accumulates gradients and applies them at times.

In an update replicas wait for each other. TensorFlow lets them do so in the graph of the step, but not in that of a
condition. So a condition that fails for this reason is made once more: one condition for all replicas of the worker,
whose branches run on all of them, as a step does. What is decided by a loss or by gradients is decided by those of the
global batch (see losses/decisions.py). All replicas of all workers have to decide alike, else some would wait for
others in vain; each step checks it.

Other conditions stay as they are: a replica decides by its own rows whether to divide by a sum of them.

Source: tensorflow/python/distribute/mirrored_run.py, `_MirroredReplicaContext._merge_call`; upstream issue
keras-team/keras#17429.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.decisions import of_global_batch
from tfdist.keras_compat.losses.global_batch import current_batch, in_branch, works_alone
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import is_refused_wait, may_wait, refuses_waits


class _Branches:
    """The branches of one replica's condition, and what its condition returns."""

    def __init__(self, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> None:
        from tensorflow.python.autograph.core import ag_ctx

        self._functions = {True: true_fn, False: false_fn}
        # Threads have their own.
        self._autograph = ag_ctx.control_status_ctx()
        self._summaries = dict(vars(_summaries()))
        self._batch = current_batch()
        self.result: Any = None

    def run(self, pred: bool) -> None:
        """Runs a branch on this replica; called on another thread than that of the step."""
        vars(_summaries()).update(self._summaries)
        with self._autograph, in_branch(self._batch):
            self.result = tf.nest.map_structure(_result, self._functions[pred]())


def _summaries() -> Any:
    """Returns what tf.summary writes on this thread: its step, its writer, and whether it writes."""
    from tensorflow.python.ops import summary_ops_v2

    return summary_ops_v2._summary_state


def _result(value: Any) -> Any:
    """Returns a result of a branch, such as a norm of gradients, for the global batch if it is a function of it."""
    others = (tf.Operation, tf.TensorArray, tf.__internal__.CompositeTensor)
    if value is None or (isinstance(value, others) and not isinstance(value, tf.Variable)):
        return value
    value, batch = tf.convert_to_tensor(value), current_batch()
    exact = None if batch is None else value_of_global_batch(value, batch)
    return value if exact is None else exact


def _is_recorded() -> bool:
    """Returns whether a tape of this thread records; it would not see what the branches compute on other threads."""
    from tensorflow.python.eager import record

    return record.could_possibly_record()


def _agreed(pred: Any, context: Any) -> Any:
    """Returns a condition, which fails in the step in which the replicas do not decide alike."""
    replicas, batch = context.num_replicas_in_sync, current_batch()
    pred = tf.reshape(pred, [])
    if replicas == 1:
        return pred
    if batch is not None:
        pred = of_global_batch(pred, batch)
    yes = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(pred, tf.float32))
    alike = tf.debugging.Assert(
        tf.logical_or(tf.equal(yes, 0.0), tf.equal(yes, float(replicas))),
        [
            f"expected all {replicas} replicas to take the same branch of a tf.cond that updates variables, received "
            "both branches; decide by something that is equal on all replicas, such as a number of steps, or by a sum "
            "from tfdist.collectives.all_reduce."
        ],
    )
    with tf.control_dependencies([alike]):
        return tf.identity(pred)


def _across_replicas(stock: Callable, pred: Any, true_fn: Callable, false_fn: Callable, name: str | None) -> Any:
    context = tf.distribute.get_replica_context()
    own = _Branches(true_fn, false_fn)

    @tf.autograph.experimental.do_not_convert
    def across(strategy: Any, preds: Any, branches: Any) -> None:
        everyone = strategy.experimental_local_results(branches)

        def branch(pred: bool) -> list[Any]:
            strategy.extended.call_for_each_replica(_Branches.run, args=(branches, pred))
            return [one.result for one in everyone]

        same = strategy.experimental_local_results(preds)[0]
        yes, no = functools.partial(branch, True), functools.partial(branch, False)
        found = stock(same, yes, no, strict=True, name=name)
        for one, result in zip(everyone, found, strict=True):
            one.result = result

    context.merge_call(across, args=(_agreed(pred, context), own))
    return own.result


def _once_more_across_replicas(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def cond(
        pred: Any, true_fn: Any = None, false_fn: Any = None, strict: bool = False, name: Any = None, **legacy: Any
    ) -> Any:
        try:
            return stock(pred, true_fn, false_fn, strict, name, **legacy)
        except RuntimeError as error:
            if not is_refused_wait(error) or not may_wait() or _is_recorded() or works_alone():
                raise
        return _across_replicas(stock, pred, true_fn, false_fn, name)

    return cond


def _apply() -> None:
    from tensorflow.python.ops import cond

    cond.cond = _once_more_across_replicas(cond.cond)


MEND = Mend(
    name="updates_in_a_condition",
    issue="keras-team/keras#17429",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=refuses_waits,
    apply=_apply,
    defect="a `train_step` that applies gradients in a `tf.cond`, such as one that accumulates them, fails with an "
    "error that names `merge_call`",
    without_row="the public program updates_in_conditions shows it",
)
