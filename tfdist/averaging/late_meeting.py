"""LateMeeting: a meeting whose sums are used at the next one, so that they are sent while the local steps go on.

A meeting: own weights + what the last meeting changes them by -> parts of the next sum -> sent in the background. Each
replica keeps the changes that it has made since the last meeting: x_i <- x_i + (next - sent_i), where sent_i are the
weights with which it took part in the last meeting, and next is what the outer rule makes of their sum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.aggregation import sum_gradients
from tfdist.allreduce.in_background import SumsInBackground
from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import launchers_in_background
from tfdist.averaging.meeting import Meeting, next_of
from tfdist.averaging.outer import OuterRule
from tfdist.averaging.replica_values import common_variable, share_of_replica, times

# What has become of the sums of the last meeting.
_NONE, _HERE, _ON_THE_WAY = range(3)


class LateMeeting(Meeting):
    """See the module; the arguments are those of Meeting.

    Source: Shen et al. 2019 (1906.12043, CoCoD-SGD); the paper averages the weights.
    """

    _is_anchored = True
    keeps_apart = True

    def __init__(self, outer: OuterRule, parts: tuple[str, ...], options: AllReduceOptions | None) -> None:
        super().__init__(outer, parts, options)
        self._sent: list[PerReplica] = []
        self._totals: list[PerReplica] = []
        self._trained_before: tf.Variable | None = None

    def build(self, variables: Sequence[Any]) -> None:
        """See Meeting.

        Raises:
            ValueError: if the sums would be sent by TensorFlow between processes.
        """
        super().build(variables)
        strategy = tf.distribute.get_strategy()
        launchers = launchers_in_background(strategy)
        if not launchers and strategy.extended._in_multi_worker_mode():
            raise ValueError(
                "expected a strategy with the native transport for LocalSGD with overlap=True, received one that sends "
                "with TensorFlow, whose steps end when their sums have come; on CPUs, run `pip install '.[native]'` in "
                "a checkout of tfdist on all workers, otherwise leave overlap out."
            )
        for i, variable in enumerate(self.weights):
            zeros = tf.zeros(variable.shape, variable.dtype)
            self._sent.append(PerReplica(zeros, name=f"sent{i}", combine="mean"))
            self._totals.append(PerReplica(zeros, name=f"total{i}", shared=True))
        # Which weights had been trained in the round before the last meeting.
        self._trained_before = common_variable("trained_before", [0] * len(self.weights))
        self._share = PerReplica(tf.zeros([], tf.float64), name="share")
        self._stage = PerReplica(tf.zeros([], tf.int64), name="stage", shared=True)
        for one in (*self._totals, self._stage, *self.path.variables):
            one.call_before_reading(lambda: self.settle(strategy))
        if launchers:
            specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.weights]
            # Not tracked, because its variables mean nothing to another process.
            object.__setattr__(self, "_background", SumsInBackground(self.path, specs, launchers))

    _background: SumsInBackground | None = None

    def settle(self, strategy: Any) -> None:
        """See Meeting: waits for the sums on the way, and keeps them for the next meeting."""
        if not hasattr(self, "_stage") or int(self._stage.local().numpy()) != _ON_THE_WAY:
            return

        def of_replica() -> None:
            for variable, total in zip(self._totals, self._come(), strict=True):
                variable.assign(total)
            self._stage.assign(tf.constant(_HERE, tf.int64))

        with strategy.scope():
            # Not called as a function: TensorFlow would warn that each meeting traces it anew.
            tf.function(lambda: strategy.run(of_replica), autograph=False).get_concrete_function()()

    def restart(self, rows: PerReplica, are_set: Sequence[bool]) -> None:
        """See Meeting: what the last meeting would have changed is left out, and so is what it has kept back."""
        super().restart(rows, are_set)
        self.keep_nothing_back([True] * len(are_set))
        assert self._trained is not None
        assert self._trained_before is not None
        # The next meeting sends the changes of that round again.
        self._trained.assign(tf.maximum(self._trained.read_value(), self._trained_before.read_value()))
        self._stage.assign_local([tf.constant(_NONE, tf.int64)] * len(self._stage.local_values()))

    def share(self, rows: PerReplica) -> tf.Tensor:
        """See Meeting; right after a meeting it is the share that the replica has had in it."""
        total: Any = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, rows.read())
        has_met = tf.logical_and(total <= 0, self._stage.read() != _NONE)
        return tf.where(has_met, self._share.read(), super().share(rows))

    def _exchange(self, rows: PerReplica, others: Sequence[tf.Variable], trained: tf.Tensor) -> list[tf.Tensor]:
        weight = share_of_replica(rows.read())
        own = [tf.identity(variable) for variable in self.weights]
        averages = [times(tf.identity(variable), weight) for variable in others]
        anchors = [anchor.read() for anchor in self._anchors]
        slots = [[slot.read() for slot in of_weight] for of_weight in self._outer_slots]
        own, anchors, slots = tf.cond(
            self._stage.read() == _NONE, lambda: (own, anchors, slots), lambda: self._moved(own, anchors, slots)
        )
        parts = self._parts(anchors, own, weight)
        if self._background is not None:
            self._background.start(parts)
            averaged = sum_gradients(averages)
        else:
            sums = self.path.sum_gradients([*parts, *averages])
            averaged = sums[len(parts) :]
            for variable, total in zip(self._totals, sums, strict=False):
                variable.assign(total)
        self._stage.assign(tf.constant(_HERE if self._background is None else _ON_THE_WAY, tf.int64))
        held = [*self._sent, *self._anchors, *(slot for of_weight in self._outer_slots for slot in of_weight)]
        values = [*own, *anchors, *(value for of_weight in slots for value in of_weight)]
        for variable, value in zip(held, values, strict=True):
            variable.assign(value)
        self._share.assign(weight)
        rows.assign(tf.zeros_like(weight))
        return [*own, *averaged]

    def _moved(self, own: list[Any], anchors: list[Any], slots: list[list[Any]]) -> tuple[list[Any], ...]:
        """Returns the own weights, the common ones and the slots after the last meeting, whose sums are here."""
        stage, share = self._stage.read(), self._share.read()
        here = [variable.read() for variable in self._totals]
        totals = here if self._background is None else tf.cond(stage == _ON_THE_WAY, self._come, lambda: here)
        after: tuple[list[Any], ...] = ([], [], [])
        before = [variable.read() for variable in self._sent]
        parts = self._parts(anchors, before, share)
        assert self._trained_before is not None
        trained = tf.unstack(tf.convert_to_tensor(self._trained_before) > 0)
        columns = zip(trained, own, anchors, slots, before, parts, totals, strict=True)
        for is_trained, value, anchor, held, sent, part, total in columns:
            following, common, of_weight = next_of(self.outer, is_trained, anchor, sent, part, total, tuple(held))
            for found, one in zip(after, (value + (following - sent), common, list(of_weight)), strict=True):
                found.append(one)
        return after

    def go_on(self, strategy: Any, since: Any, every: Any) -> None:
        """See Meeting: starts the next collectives of a compression, spread evenly over the steps of a round."""
        stages = 0 if self._background is None else self._background.stages

        def of_replica(stage: int, since: Any, every: Any) -> None:
            due = tf.logical_and(self._stage.read() == _ON_THE_WAY, since * stages >= (stage + 1) * every)
            tf.cond(due, lambda: self._go_on(stage), tf.no_op)

        # Outside of functions, replicas run one after another: none may wait for what another one has not begun.
        for stage in range(stages - 1):
            each = functools.partial(of_replica, stage)
            strategy.extended.call_for_each_replica(each, args=(since, tf.cast(every, tf.int64)))

    def hold(self, strategy: Any, rows: PerReplica) -> None:
        """See Meeting."""
        one = tf.ones([], tf.int64)
        self.go_on(strategy, one, one)
        assert self._trained is not None
        assert self._trained_before is not None
        trained = tf.convert_to_tensor(self._trained)
        super().hold(strategy, rows)
        self._trained_before.assign(trained)

    def _go_on(self, stage: int) -> tf.Operation:
        assert self._background is not None
        self._background.go_on(stage, self._parts_sent)
        return tf.no_op()

    def _come(self) -> list[tf.Tensor]:
        """Waits for the sums on the way and returns them; called in replica context."""
        assert self._background is not None
        at_once = sum(variable.shape.num_elements() * variable.dtype.size for variable in self.others)
        return self._background.finish(self._parts_sent, bytes_at_once=at_once)

    def _parts_sent(self) -> list[Any]:
        """Returns the parts of the sums on the way, in replica context: nothing of them has changed meanwhile."""
        anchors, sent = ([one.read() for one in held] for held in (self._anchors, self._sent))
        return self._parts(anchors, sent, self._share.read())

    def _parts(self, anchors: Sequence[Any], own: Sequence[Any], share: Any) -> list[Any]:
        pairs = zip(anchors, own, strict=True)
        return [self.outer.part(anchor, value, tf.cast(share, value.dtype)) for anchor, value in pairs]
