"""LocalHook: updates each replica with its own gradients, and lets the replicas meet from time to time.

A step: own gradient -> update of the replica's own variables -> after `every` steps, a meeting (see meeting.py). This
file is independent of Keras; the adapters in tfdist/keras_compat/optimizers call `run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.options import AllReduceOptions
from tfdist.allreduce.path import GradientPath
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.update_hook import UpdateHook, check_strategy, is_supported, variable_key
from tfdist.averaging.late_meeting import LateMeeting
from tfdist.averaging.meeting import Meeting
from tfdist.averaging.outer import Average, OuterRule
from tfdist.averaging.replica_values import common_variable, multiplied
from tfdist.averaging.schedule import Meetings
from tfdist.averaging.seen import SeenValues
from tfdist.keras_compat.local_steps.prepare import refuse_constraints
from tfdist.keras_compat.optimizers.base import held_variable
from tfdist.keras_compat.optimizers.hooked import hooks_that_trained, remember_trained
from tfdist.keras_compat.optimizers.slots import slots_of


class LocalHook(UpdateHook):
    """State that LocalSGD attaches to an optimizer.

    Args:
        meetings: after which steps the replicas meet.
        outer: how they combine their weights.
        parts: what they combine: "weights", "slots", "statistics".
        seen: "average" or "chief": which weights are seen between meetings.
        options: options of the sums of a meeting; None for those of the strategy.
        overlap: whether the sums of the weights are sent while the local steps go on.
    """

    program = "LocalSGD"

    def __init__(
        self,
        meetings: Meetings,
        outer: OuterRule,
        parts: tuple[str, ...],
        seen: str,
        options: AllReduceOptions | None,
        overlap: bool = False,
    ) -> None:
        super().__init__()
        self.meetings, self._seen, self._options, self._overlap = meetings, seen, options, overlap
        self.meeting = (LateMeeting if overlap else Meeting)(outer, parts, options)
        # The gradients of synchronous steps take the options of the strategy, the meetings those of the argument.
        self._synchronous = GradientPath(None)
        # The place of each variable that the steps train, by its key. Empty until the first step.
        object.__setattr__(self, "_places", {})
        # The variables of which the optimizer was built, if it was built before the first step.
        object.__setattr__(self, "_built_of", [])
        # Not tracked, because it has no state that outlives the process.
        object.__setattr__(self, "seen_values", None)

    seen_values: SeenValues | None
    _places: dict[Any, int]
    _built_of: list[Any]

    @property
    def calls_update_later(self) -> bool:
        """See UpdateHook."""
        return True

    @property
    def counts_alone(self) -> bool:
        """See UpdateHook."""
        return not self._is_synchronous

    @property
    def _is_synchronous(self) -> bool:
        # With other rules a meeting after every step is no synchronous step.
        return self.meetings.is_every_step and not self._overlap and isinstance(self.meeting.outer, Average)

    def recipe(self) -> tuple[Callable[..., UpdateHook], tuple[Any, ...]]:
        """See UpdateHook."""
        meeting = self.meeting
        return LocalHook, (self.meetings, meeting.outer, meeting.parts, self._seen, self._options, self._overlap)

    def attached(self, optimizer: Any) -> None:
        """See UpdateHook."""
        object.__setattr__(self.meeting, "slots_of", lambda: slots_of(optimizer))

    def trains(self, statistics_of: Callable[[], list[tf.Variable]]) -> None:
        """See UpdateHook."""
        object.__setattr__(self.meeting, "statistics_of", statistics_of)

    @property
    def lets_replicas_differ(self) -> bool:
        """See UpdateHook."""
        return True

    @property
    def trained(self) -> list[tf.Variable]:
        """See UpdateHook."""
        return self.meeting.weights if self._places else []

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """See UpdateHook."""
        return contextlib.nullcontext() if self.seen_values is None else self.seen_values.shown()

    def own(self) -> contextlib.AbstractContextManager[None]:
        """See UpdateHook."""
        return contextlib.nullcontext() if self.seen_values is None else self.seen_values.own()

    def built(self, strategy: Any, variables: Sequence[Any]) -> None:
        """See UpdateHook."""
        if not self._places and not self._built_of and is_supported(strategy):
            self._build_counters_across(strategy)
            with tf.init_scope(), strategy.scope():
                self.meeting.build(variables)
            self._built_of.extend(variables)

    def build_before_steps(self, strategy: Any, variables: Sequence[Any]) -> None:
        """See UpdateHook."""
        with strategy.scope():
            strategy.run(lambda: self._build_once(variables, (), [None] * len(variables)))

    def begin_training(self) -> None:
        """See UpdateHook."""
        if self.seen_values is not None:
            self.seen_values.hide()

    def end_training(self) -> None:
        """See UpdateHook."""
        if self.seen_values is not None:
            self.seen_values.show()

    def last_meeting(self) -> int | None:
        """See UpdateHook."""
        steps, since = self._position() if self._places else (0, 0)
        return steps - since

    def total(self, part: tf.Tensor) -> tf.Tensor:
        """Returns what the replica divides by: as if all replicas had as much, except in synchronous steps."""
        context = tf.distribute.get_replica_context()
        alone = part * tf.cast(context.num_replicas_in_sync, part.dtype)
        if self._is_synchronous:
            return super().total(part)
        if not self.meetings.start_step:
            return alone
        self._build_counters()

        def across(strategy: Any, part: Any, alone: Any) -> Any:
            def summed() -> Any:
                return strategy.extended.call_for_each_replica(super(LocalHook, self).total, args=(part,))

            return tf.cond(self._is_local(), lambda: alone, summed)

        return context.merge_call(across, args=(part, alone))

    def run(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        scale: Any,
        update: Callable[[list[Any]], Any],
        *,
        known: Sequence[Any] = (),
        rows: Any = None,
    ) -> Any:
        """Makes a local step, and lets the replicas meet if a meeting is due; see UpdateHook.

        Raises:
            ValueError: if the strategy is not supported, if the gradients contain a loss scale, or if the variables are
                not those of the first step.
        """
        context = tf.distribute.get_replica_context()
        check_strategy(context.strategy, self.program)
        if scale is not None:
            raise ValueError(
                f"expected gradients without a loss scale for {self.program}, received a LossScaleOptimizer; use the "
                "policy mixed_bfloat16."
            )
        self._build_once(variables, known, gradients)
        places = [self._places[variable_key(variable)] for variable in variables]
        rows = None if self._is_synchronous else rows
        weight = tf.ones([], tf.float64) if rows is None else tf.cast(rows, tf.float64)

        def across(strategy: Any, given: list[Any], weight: Any) -> None:
            self._step(strategy, given, weight, update, places)

        context.merge_call(across, args=(list(gradients), weight))

    def _step(
        self,
        strategy: Any,
        given: list[Any],
        weight: Any,
        update: Callable[[list[Any]], Any],
        places: Sequence[int],
    ) -> None:
        each_replica = strategy.extended.call_for_each_replica
        replicas = strategy.num_replicas_in_sync
        self.meeting.note_trained([place for place, one in zip(places, given, strict=True) if one is not None])

        def alone(gradients: list[Any], weight: Any) -> None:
            update([multiplied(gradient, replicas) for gradient in gradients])
            self._rows.assign(self._rows.read() + weight)

        def together(gradients: list[Any], weight: Any) -> None:
            update(self._synchronous.sum_gradients(gradients, indices=places))

        # Conditions are outside of the replicas: inside of a replica's condition, merge_call fails
        # (keras-team/keras#20582).
        if self.meetings.start_step:
            is_local = self._is_local()
            self.meeting.begin_once(strategy, is_local, self._may_differ(), self._rows)
            tf.cond(
                is_local,
                lambda: each_replica(alone, args=(given, weight)),
                lambda: each_replica(together, args=(given, weight)),
            )
            since = self._since + tf.cast(is_local, tf.int64)
        else:
            self.meeting.begin_once(strategy, tf.constant(True), self._may_differ(), self._rows)
            each_replica(alone, args=(given, weight))
            since = self._since + 1
        every = self.meetings.steps_at(tf.convert_to_tensor(self._steps))
        due = tf.logical_and(since > 0, since >= every)
        tf.cond(
            due,
            lambda: self.meeting.hold(strategy, self._rows),
            lambda: self.meeting.go_on(strategy, since, every),
        )
        self._since.assign(tf.where(due, tf.zeros([], tf.int64), since))
        self._steps.assign_add(1)

    def _position(self) -> tuple[int, int]:
        """Returns the number of steps, and of steps since the last meeting; called outside of functions."""
        return int(self._steps.numpy()), int(self._since.numpy())

    def _may_differ(self) -> Any:
        after_the_first = tf.convert_to_tensor(self._steps) > self.meetings.start_step
        return tf.logical_or(tf.convert_to_tensor(self._since) > 0, after_the_first)

    def _is_local(self) -> Any:
        return tf.convert_to_tensor(self._steps) >= self.meetings.start_step

    def _build_once(self, variables: Sequence[Any], known: Sequence[Any], gradients: Sequence[Any]) -> None:
        self._build_counters()

        def across(strategy: Any) -> None:
            if self._places:
                self._check(variables)
                return
            given = {variable_key(variable) for variable in variables}
            refuse_constraints([*variables, *known], self.program)
            everything = self._built_of or [*variables, *(one for one in known if variable_key(one) not in given)]
            with tf.init_scope(), strategy.scope():
                if not self._built_of:
                    self.meeting.build(everything)
                if self.meetings.start_step:
                    pairs = zip(variables, gradients, strict=True)
                    sparse = {variable_key(one) for one, gradient in pairs if isinstance(gradient, tf.IndexedSlices)}
                    self._build_synchronous(everything, sparse)
                for former in hooks_that_trained(everything):
                    # Another optimizer has left the replicas apart: all go on with what it shows.
                    former.end_training()
            shown = SeenValues(strategy, self.meeting, self._rows, seen=self._seen, position=self._position)
            object.__setattr__(self, "seen_values", shown)
            remember_trained(self, everything)
            self._places.update({variable_key(variable): place for place, variable in enumerate(everything)})
            self._check(variables)

        tf.distribute.get_replica_context().merge_call(across)

    def _build_synchronous(self, variables: Sequence[Any], sparse: set[Any]) -> None:
        shapes = [None if variable_key(variable) in sparse else tuple(variable.shape) for variable in variables]
        self._synchronous.build(shapes, [tf.as_dtype(held_variable(variable).dtype).name for variable in variables])

    def _check(self, variables: Sequence[Any]) -> None:
        others = [variable.name for variable in variables if variable_key(variable) not in self._places]
        if others:
            raise ValueError(
                f"expected the variables of the first step for {self.program}, received {', '.join(others)} too; after "
                "a change of what is trained, compile the model with a new optimizer."
            )

    def _build_counters(self) -> None:
        tf.distribute.get_replica_context().merge_call(self._build_counters_across)

    def _build_counters_across(self, strategy: Any) -> None:
        if hasattr(self, "_steps"):
            return
        with tf.init_scope(), strategy.scope():
            self._steps, self._since = (common_variable(one, 0) for one in ("local_steps", "steps_since_meeting"))
            self._rows = PerReplica(tf.zeros([], tf.float64), name="rows_since_meeting")
