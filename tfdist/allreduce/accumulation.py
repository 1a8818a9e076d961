"""Accumulation: averages the gradients of several backward passes on each replica, before they are summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.aggregation import Gradient
from tfdist.allreduce.per_replica import PerReplica


class Accumulation(tf.__internal__.tracking.AutoTrackable):
    """Adds up the gradients of several backward passes, and calls an update with their mean after the last pass.

    Args:
        passes: number of backward passes per update.
    """

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.passes = passes
        self._sums: list[PerReplica] = []
        # The places of the gradients that were not None in some pass that has been traced so far.
        self._given: set[int] = set()

    def build(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """Makes the variables; called once, outside of replicas, in the scope of the strategy.

        Args:
            shapes: of the gradients.
            dtypes: of the gradients.
        """
        self._count = tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            name="passes",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        # Appended to the same list, since a checkpoint may have been restored to it already.
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            self._sums.append(PerReplica(tf.zeros(shape, dtype), name=f"accumulated{i}"))

    def add(self, gradients: Sequence[Gradient], update: Callable[[list[Any]], Any]) -> None:
        """Adds the gradients of one pass, and calls the update after the last pass; called in replica context.

        Args:
            gradients: the gradients of this pass; None if a variable has no influence on the loss.
            update: takes the means, or None for a variable without a gradient in any pass. It is called in replica
                context, inside of a tf.cond whose condition is the same on every replica.
        """

        def across(strategy: Any, given: list[Any]) -> None:
            each_replica = strategy.extended.call_for_each_replica
            self._given.update(i for i, g in enumerate(gradients) if g is not None)

            def last(gradients: list[Any]) -> None:
                # A variable without a gradient in any pass keeps None, so that the optimizer leaves it alone. A
                # variable with a gradient in another pass has a mean, even if this pass has no gradient for it. If
                # that other pass is traced later than this one, its gradient is part of a later update.
                means: list[Any] = [None] * len(gradients)
                for i, g in enumerate(gradients):
                    if i in self._given:
                        before = self._sums[i].read()
                        means[i] = (before if g is None else before + tf.convert_to_tensor(g)) / self.passes
                with tf.control_dependencies([mean for mean in means if mean is not None]):
                    resets = [
                        one.assign(tf.zeros_like(one.read()))
                        for one, mean in zip(self._sums, means, strict=True)
                        if mean is not None
                    ]
                with tf.control_dependencies(resets):
                    update([None if mean is None else tf.identity(mean) for mean in means])

            def other(gradients: list[Any]) -> None:
                for one, gradient in zip(self._sums, gradients, strict=True):
                    if gradient is not None:
                        one.assign(one.read() + tf.convert_to_tensor(gradient))

            due = tf.equal(self._count + 1, self.passes)
            # The condition is outside of the replicas: inside of a replica's condition, merge_call fails
            # (keras-team/keras#20582).
            tf.cond(due, lambda: each_replica(last, args=(given,)), lambda: each_replica(other, args=(given,)))
            self._count.assign((self._count + 1) % self.passes)

        tf.distribute.get_replica_context().merge_call(across, args=(list(gradients),))
