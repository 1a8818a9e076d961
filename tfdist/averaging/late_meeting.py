"""LateMeeting: a meeting whose sums are used at the next one, so that they are sent while the local steps go on.

A meeting: own weights + what the last meeting changes them by -> parts of the next sum -> sent in the background. Each
replica keeps the changes that it has made since the last meeting: x_i <- x_i + (next - sent_i), where sent_i are the
weights with which it took part in the last meeting, and next is what the outer rule makes of their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.packed import Packing
from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import launchers_in_background
from tfdist.averaging.meeting import Meeting, share_of_replica, times
from tfdist.averaging.outer import OuterRule

# What has become of the sums of the last meeting.
_NONE, _HERE, _ON_THE_WAY = range(3)


class _Settled(PerReplica):
    """A variable that is saved only after the sums on the way have come."""

    settle: Any = None

    def values(self) -> tf.Tensor:
        """See PerReplica."""
        self.settle()
        return super().values()


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

    def build(self, variables: Sequence[Any]) -> None:
        """See Meeting.

        Raises:
            ValueError: if the sums would be compressed, or sent by TensorFlow between processes.
        """
        super().build(variables)
        if self.path.compresses:
            raise ValueError(
                "expected no compression for LocalSGD with overlap=True, received "
                f"{self.path.options.compression!r}; leave one of the two out."
            )
        strategy = tf.distribute.get_strategy()
        self._in_background = launchers_in_background(strategy)
        if not self._in_background and strategy.extended._in_multi_worker_mode():
            raise ValueError(
                "expected a strategy with the native transport for LocalSGD with overlap=True, received one that sends "
                "with TensorFlow, whose steps end when their sums have come; on CPUs, run pip install 'tfdist[native]' "
                "on all workers, otherwise leave overlap out."
            )
        self._packing = Packing(
            [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.weights],
            bytes_per_pack=self.path.options.bytes_per_pack or DEFAULT_BYTES_PER_PACK,
            splits=not self._in_background,
        )
        for i, variable in enumerate(self.weights):
            zeros = tf.zeros(variable.shape, variable.dtype)
            self._sent.append(PerReplica(zeros, name=f"sent{i}", combine="mean"))
            self._totals.append(self._settled(zeros, f"total{i}"))
        self._share = PerReplica(tf.zeros([], tf.float64), name="share", combine="mean")
        self._stage = self._settled(tf.zeros([], tf.int64), "stage")
        # Of this process: not tracked, because the numbers mean nothing to another one.
        numbers = PerReplica(tf.zeros([len(self._packing.specs)], tf.int64), name="operations")
        object.__setattr__(self, "_operations", numbers)

    _operations: PerReplica

    def _settled(self, initial: Any, name: str) -> PerReplica:
        made = _Settled(initial, name=name, shared=True)
        strategy = tf.distribute.get_strategy()
        made.settle = lambda: self.settle(strategy)
        return made

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

    def share(self, rows: PerReplica) -> tf.Tensor:
        """See Meeting; right after a meeting it is the share that the replica has had in it."""
        total: Any = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, rows.read())
        has_met = tf.logical_and(total <= 0, self._stage.read() != _NONE)
        return tf.where(has_met, self._share.read(), super().share(rows))

    def _exchange(self, rows: PerReplica, others: Sequence[tf.Variable]) -> list[tf.Tensor]:
        weight = share_of_replica(rows.read())
        own = [tf.identity(variable) for variable in self.weights]
        averaged = self.path.sum_gradients([times(tf.identity(variable), weight) for variable in others])
        anchors = [anchor.read() for anchor in self._anchors]
        slots = [[slot.read() for slot in of_weight] for of_weight in self._outer_slots]
        own, anchors, slots = tf.cond(
            self._stage.read() == _NONE, lambda: (own, anchors, slots), lambda: self._moved(own, anchors, slots)
        )
        parts = [
            self.outer.part(anchor, value, tf.cast(weight, value.dtype))
            for anchor, value in zip(anchors, own, strict=True)
        ]
        launcher = self._launcher()
        if launcher is not None:
            numbers = [launcher.start_all_reduce(pack) for pack in self._packing.pack(parts)]
            self._operations.assign(tf.stack(numbers))
        else:
            for variable, total in zip(self._totals, self.path.sum_gradients(parts), strict=True):
                variable.assign(total)
        self._stage.assign(tf.constant(_HERE if launcher is None else _ON_THE_WAY, tf.int64))
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
        totals = here if self._launcher() is None else tf.cond(stage == _ON_THE_WAY, self._come, lambda: here)
        after: tuple[list[Any], ...] = ([], [], [])
        for value, anchor, held, sent, total in zip(own, anchors, slots, self._sent, totals, strict=True):
            before = sent.read()
            part = self.outer.part(anchor, before, tf.cast(share, before.dtype))
            following, common, of_weight = self.outer.next(anchor, before, part, total, tuple(held))
            for found, one in zip(after, (value + (following - before), common, list(of_weight)), strict=True):
                found.append(one)
        return after

    def _come(self) -> list[tf.Tensor]:
        """Waits for the sums on the way and returns them; called in replica context."""
        launcher = self._launcher()
        numbers = tf.unstack(self._operations.read(), len(self._packing.specs))
        found = zip(numbers, self._packing.specs, strict=True)
        return self._packing.unpack([launcher.finish(number, spec) for number, spec in found])

    def _launcher(self) -> Any:
        """Returns what starts sums in the background; None if the sums are made at once."""
        if not self._in_background:
            return None
        return self._in_background[tf.distribute.get_replica_context()._replica_id]
