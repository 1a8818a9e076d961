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
from tfdist.averaging.replica_values import common_variable, components, share_of_replica, times
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
        self._trained: tf.Variable | None = None
        self._begun: tf.Variable | None = None
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
        # Which weights the steps since the last meeting have trained: the rule leaves a frozen layer alone.
        self._trained = common_variable("trained", [0] * len(self.weights))
        if not self._is_anchored:
            return
        # Whether the anchors are common weights. A checkpoint of another rule does not have them.
        self._begun = common_variable("begun", 0)
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

    def begin_once(self, strategy: Any, is_local: Any, may_differ: Any, rows: PerReplica) -> None:
        """Remembers the common weights before the first local step; called in cross-replica context.

        Args:
            strategy: the strategy.
            is_local: bool scalar, whether the next step is local.
            may_differ: bool scalar, whether the replicas may have other weights than the others.
            rows: what each replica has trained on since the last meeting.
        """
        if self._begun is None:
            return
        each_replica = strategy.extended.call_for_each_replica
        due = tf.logical_and(is_local, tf.equal(self._begun, 0))

        def average() -> None:
            found = each_replica(lambda: self._combined(share_of_replica(rows.read())))
            self._assign(strategy, [*self.weights, *self.others], found)

        def remember() -> None:
            for anchor, variable in zip(self._anchors, self.weights, strict=True):
                anchor.assign(tf.identity(variable))

        # A training that goes on with this rule after local steps of another one.
        tf.cond(tf.logical_and(due, may_differ), average, _nothing)
        tf.cond(due, lambda: each_replica(remember), _nothing)
        # Synchronous steps, of a training that goes on with a later start, move the common weights.
        self._begun.assign(tf.cast(is_local, tf.int64))

    @property
    def has_begun(self) -> bool:
        """Whether there are common weights of the rule; called outside of functions."""
        return self._begun is not None and int(self._begun.numpy()) > 0

    def note_trained(self, places: Sequence[int]) -> None:
        """Remembers which weights a step trains; called in cross-replica context, in each step.

        Args:
            places: the places of the weights.
        """
        assert self._trained is not None
        mask = tf.constant([int(place in places) for place in range(len(self.weights))], tf.int64)
        self._trained.assign(tf.maximum(tf.convert_to_tensor(self._trained), mask))

    def hold(self, strategy: Any, rows: PerReplica) -> None:
        """Combines the variables of all replicas; called in cross-replica context.

        Args:
            strategy: the strategy.
            rows: what each replica has trained on since the last meeting, by which averages are weighted; it is set to
                0.
        """
        assert self._trained is not None
        others = self.others
        trained = tf.convert_to_tensor(self._trained)
        found = strategy.extended.call_for_each_replica(self._exchange, args=(rows, others, trained))
        self._assign(strategy, [*self.weights, *others], found)
        self._trained.assign(tf.zeros_like(trained))

    def _assign(self, strategy: Any, variables: Sequence[Any], values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, lambda own, value: own.assign(value), args=(value,))

    def _exchange(self, rows: PerReplica, others: Sequence[tf.Variable], trained: tf.Tensor) -> list[tf.Tensor]:
        """Returns the next values of a replica's variables; called in replica context.

        Args:
            rows: see hold.
            others: the variables that are averaged beside the weights.
            trained: 1 for each weight that has been trained since the last meeting, else 0.
        """
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
        after: list[Any]
        if self._is_anchored:
            quadruples = enumerate(zip(anchors, own, parts, totals, strict=True))
            after = [
                self._next(place, anchor, value, part, total, trained[place] > 0)
                for place, (anchor, value, part, total) in quadruples
            ]
        else:
            pairs = enumerate(zip(totals, own, strict=True))
            after = [tf.where(trained[place] > 0, total, value) for place, (total, value) in pairs]
        rows.assign(tf.zeros_like(weight))
        return [*after, *sums[len(parts) :]]

    def _next(self, place: int, anchor: Any, own: Any, part: Any, total: Any, is_trained: Any) -> Any:
        slots = self._outer_slots[place]
        before = tuple(slot.read() for slot in slots)
        after, common, values = next_of(self.outer, is_trained, anchor, own, part, total, before)
        self._anchors[place].assign(common)
        for slot, value in zip(slots, values, strict=True):
            slot.assign(value)
        return after

    def seen(self, weight: tf.Tensor, *, has_begun: bool) -> list[tf.Tensor]:
        """Returns the values of the weights and the others that evaluation sees; called in replica context.

        Args:
            weight: the weight of this replica; those of all replicas add up to 1.
            has_begun: see the property.
        """
        if self.outer.keeps_own and has_begun:
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
            rows: what each replica has trained on since the last meeting; it is set to 0 if all weights are set.
            are_set: whether the program has set each weight. Every worker passes the same.
        """
        if self._is_anchored:
            for anchor, variable, is_set in zip(self._anchors, self.weights, are_set, strict=True):
                if is_set:
                    anchor.assign_local([one.read_value() for one in components(variable)])
        self.keep_nothing_back(are_set)
        if all(are_set):
            rows.assign_local([tf.zeros_like(one) for one in rows.local_values()])

    def keep_nothing_back(self, are_set: Sequence[bool]) -> None:
        """Forgets what error feedback has kept back, as a part of changes of other weights.

        Args:
            are_set: for which weights.
        """
        for place, residual in self.path.residuals().items():
            if are_set[place]:
                residual.assign_local([tf.zeros_like(one) for one in residual.local_values()])


def next_of(
    outer: OuterRule, is_trained: Any, anchor: Any, own: Any, part: Any, total: Any, slots: tuple[Any, ...]
) -> tuple[Any, Any, tuple]:
    """Returns what the rule makes of a weight, or the same values if the weight has not been trained; see OuterRule."""
    after, common, values = outer.next(anchor, own, part, total, slots)

    def of(new: Any, old: Any) -> Any:
        return tf.where(is_trained, new, old)

    return of(after, own), of(common, anchor), tuple(map(of, values, slots))


def _nothing() -> None:
    return None
