"""Accumulation: gradients of several backward passes, averaged on each replica before they are summed over replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.aggregation import Gradient
from tfdist.allreduce.per_replica import PerReplica


class Accumulation(tf.__internal__.tracking.AutoTrackable):
    """Gathers gradients, and gives their mean to an update every so many passes.

    Args:
        passes: how many passes an update is made of.
    """

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.passes = passes
        self._sums: list[PerReplica] = []
        # Which had an influence on the loss of any pass so far.
        self._given: set[int] = set()

    def build(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> None:
        """Makes the variables; once, outside of replicas, in the scope of the strategy."""
        self._count = tf.Variable(
            tf.zeros([], tf.int64),
            trainable=False,
            name="passes",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        # Into the list that a checkpoint may have been restored to already.
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
            self._sums.append(PerReplica(tf.zeros(shape, dtype), name=f"accumulated{i}"))

    def add(self, gradients: Sequence[Gradient], update: Callable[[list[Any]], Any]) -> None:
        """Adds the gradients of a pass; with the last one of an update calls it with their mean; in replica context.

        Args:
            gradients: of this pass.
            update: is called in replica context, in a branch of a condition that is the same on every replica.
        """

        def across(strategy: Any, given: list[Any]) -> None:
            each_replica = strategy.extended.call_for_each_replica
            self._given.update(i for i, g in enumerate(gradients) if g is not None)

            def last(gradients: list[Any]) -> None:
                # What never had an influence on a loss stays so: an optimizer leaves such a variable alone. What other
                # passes had gradients of has a mean, even if this pass has none. Of a pass that is traced later than
                # this one, a gradient waits for an update that knows of it.
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
            # A condition outside of the replicas: within one they cannot meet (keras-team/keras#20582).
            tf.cond(due, lambda: each_replica(last, args=(given,)), lambda: each_replica(other, args=(given,)))
            self._count.assign((self._count + 1) % self.passes)

        tf.distribute.get_replica_context().merge_call(across, args=(list(gradients),))
