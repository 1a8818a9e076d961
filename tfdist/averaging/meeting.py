"""Meeting: sums what the replicas have come to in their local steps, and gives each replica its next variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.aggregation import sum_gradients
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.path import GradientPath
from tfdist.allreduce.per_replica import PerReplica
from tfdist.averaging.outer import Average, OuterRule
from tfdist.keras_compat.optimizers.base import held_variable

PARTS = ("weights", "slots", "statistics")


class Meeting(tf.__internal__.tracking.AutoTrackable):
    """The variables that replicas have of their own, and the state of the rule that combines them.

    Args:
        outer: how the replicas combine their weights.
        parts: what they combine, out of PARTS. Slots and statistics are averaged.
        options: options of the sums; None for those of the strategy.
    """

    def __init__(self, outer: OuterRule, parts: tuple[str, ...], options: AllReduceOptions | None) -> None:
        super().__init__()
        self.outer, self.parts = outer, parts
        self.path = GradientPath(options)
        self._anchors: list[PerReplica] = []
        self._outer_slots: list[list[PerReplica]] = []
        # Not tracked, because checkpoints contain these variables already.
        object.__setattr__(self, "weights", [])
        object.__setattr__(self, "slots_of", lambda: [])
        object.__setattr__(self, "statistics_of", lambda: [])

    weights: list[tf.Variable]
    slots_of: Callable[[], list[tf.Variable]]
    statistics_of: Callable[[], list[tf.Variable]]

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the state of the rule; called once, in cross-replica context, in the scope of the strategy.

        Args:
            variables: the trained variables, of TensorFlow or Keras.
        """
        self.weights.extend(held_variable(variable) for variable in variables)
        shapes = [tuple(variable.shape) for variable in self.weights]
        self.path.build(shapes, [tf.as_dtype(variable.dtype).name for variable in self.weights])
        if not self._is_anchored:
            return
        for i, variable in enumerate(self.weights):
            zeros = tf.zeros(variable.shape, variable.dtype)
            self._anchors.append(PerReplica(zeros, name=f"anchor{i}", shared=True))
            self._outer_slots.append([PerReplica(zeros, name=f"{n}{i}", shared=True) for n in self.outer.slots])

    @property
    def _is_anchored(self) -> bool:
        # A plain average needs no common weights to start from, unless only their changes can be compressed.
        return self.path.compresses or not isinstance(self.outer, Average)

    @property
    def keeps_apart(self) -> bool:
        """Whether replicas have different weights after a meeting."""
        return self.outer.keeps_own

    def settle(self, strategy: Any) -> None:
        """Waits for what a meeting has left to do; called outside of functions, by every worker.

        Args:
            strategy: the strategy.
        """

    def go_on(self, strategy: Any, since: Any, every: Any) -> None:
        """Goes on with what the last meeting has begun; called in cross-replica context, in a step without a meeting.

        Args:
            strategy: the strategy.
            since: number of local steps since the last meeting, an int64 tensor.
            every: number of steps from one meeting to the next.
        """

    def share(self, rows: PerReplica) -> tf.Tensor:
        """Returns the weight of this replica in what evaluation sees, a scalar; called in replica context.

        Args:
            rows: what each replica has trained on since the last meeting.
        """
        return share_of_replica(rows.read())

    @property
    def others(self) -> list[tf.Variable]:
        """The variables that are averaged beside the weights."""
        slots = self.slots_of() if "slots" in self.parts else []
        statistics = self.statistics_of() if "statistics" in self.parts else []
        return [*slots, *statistics]

    def begin_once(self, strategy: Any, first: Any) -> None:
        """Remembers the common weights before the first local step; called in cross-replica context.

        Args:
            strategy: the strategy.
            first: bool scalar, whether the next step is the first local step.
        """
        if not self._is_anchored:
            return

        def remember() -> None:
            for anchor, variable in zip(self._anchors, self.weights, strict=True):
                anchor.assign(tf.identity(variable))

        tf.cond(first, lambda: strategy.extended.call_for_each_replica(remember), _nothing)

    def hold(self, strategy: Any, rows: PerReplica) -> None:
        """Combines the variables of all replicas; called in cross-replica context.

        Args:
            strategy: the strategy.
            rows: what each replica has trained on since the last meeting, by which averages are weighted; it is set to
                0.
        """
        others = self.others
        found = strategy.extended.call_for_each_replica(self._exchange, args=(rows, others))
        for variable, value in zip([*self.weights, *others], found, strict=True):
            strategy.extended.update(variable, lambda own, value: own.assign(value), args=(value,))

    def _exchange(self, rows: PerReplica, others: Sequence[tf.Variable]) -> list[tf.Tensor]:
        """Returns the next values of a replica's variables; called in replica context."""
        weight = share_of_replica(rows.read())
        own = [tf.identity(variable) for variable in self.weights]
        averaged = [times(tf.identity(variable), weight) for variable in others]
        if self._is_anchored:
            anchors = [anchor.read() for anchor in self._anchors]
            parts = [
                self.outer.part(anchor, value, tf.cast(weight, value.dtype))
                for anchor, value in zip(anchors, own, strict=True)
            ]
        else:
            parts = [times(value, weight) for value in own]
        sums = self.path.sum_gradients([*parts, *averaged])
        totals: list[Any] = sums[: len(parts)]
        after: list[Any] = totals
        if self._is_anchored:
            after = [
                self._next(place, anchor, value, part, total)
                for place, (anchor, value, part, total) in enumerate(zip(anchors, own, parts, totals, strict=True))
            ]
        rows.assign(tf.zeros_like(weight))
        return [*after, *sums[len(parts) :]]

    def _next(self, place: int, anchor: Any, own: Any, part: Any, total: Any) -> Any:
        slots = self._outer_slots[place]
        after, common, values = self.outer.next(anchor, own, part, total, tuple(slot.read() for slot in slots))
        self._anchors[place].assign(common)
        for slot, value in zip(slots, values, strict=True):
            slot.assign(value)
        return after

    def seen(self, weight: tf.Tensor) -> list[tf.Tensor]:
        """Returns the values of the weights and the others that evaluation sees; called in replica context.

        Args:
            weight: the weight of this replica; those of all replicas add up to 1.
        """
        if self.outer.keeps_own:
            weights: list[Any] = [anchor.read() for anchor in self._anchors]
            others = [times(tf.identity(variable), weight) for variable in self.others]
            return [*weights, *sum_gradients(others)] if others else weights
        return self._combined(weight)

    def of_first_replica(self) -> list[tf.Tensor]:
        """Returns the first replica's values of the weights and the others; called in replica context."""
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        return self._combined(tf.cast(is_first, tf.float64))

    def _combined(self, weight: tf.Tensor) -> list[Any]:
        values = [tf.identity(one) for one in [*self.weights, *self.others]]
        # Not a product, because a replica that does not count may have infinite values.
        return list(sum_gradients([tf.where(weight > 0, times(one, weight), tf.zeros_like(one)) for one in values]))

    def restart(self, rows: PerReplica, are_set: Sequence[bool]) -> None:
        """Lets a round begin with the weights that a program has given to all replicas; called outside of functions.

        Args:
            rows: what each replica has trained on since the last meeting; it is set to 0.
            are_set: whether the program has set each weight. Every worker passes the same.
        """
        if self._is_anchored:
            for anchor, variable, is_set in zip(self._anchors, self.weights, are_set, strict=True):
                if is_set:
                    anchor.assign_local([one.read_value() for one in components(variable)])
        # What error feedback has kept back is a part of changes of other weights.
        for place, residual in self.path.residuals().items():
            if are_set[place]:
                residual.assign_local([tf.zeros_like(one) for one in residual.local_values()])
        rows.assign_local([tf.zeros_like(one) for one in rows.local_values()])


def components(variable: Any) -> tuple[Any, ...]:
    """Returns the variables that a variable has on the replicas of this process."""
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)


def share_of_replica(rows: tf.Tensor) -> tf.Tensor:
    """Returns the share that a replica has of the rows of all replicas, a scalar; equal shares if there are no rows.

    Args:
        rows: the rows of this replica, a float scalar. Called in replica context.
    """
    replicas = tf.distribute.get_replica_context().num_replicas_in_sync
    total: Any = sum_gradients([rows])[0]
    return tf.where(total > 0, tf.math.divide_no_nan(rows, total), tf.ones_like(rows) / replicas)


def times(value: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Returns a tensor times a scalar of any dtype."""
    return value * tf.cast(weight, value.dtype)


def _nothing() -> None:
    return None
