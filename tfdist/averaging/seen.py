"""SeenValues: gives all replicas their common values for a while, and then gives each replica its own values back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.per_replica import PerReplica
from tfdist.averaging.meeting import Meeting
from tfdist.averaging.replica_values import components

_Values = list[list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class _Shown:
    """What is remembered while the seen values are shown: the values of each variable on each replica of this process.

    Attributes:
        variables: the variables. A model that is compiled meanwhile has more.
        own: the values with which the replicas go on.
        seen: the values that are shown.
        step: the number of steps when they were shown.
    """

    variables: list[tf.Variable]
    own: _Values
    seen: _Values
    step: int


class SeenValues:
    """Changes the variables of a model between the values of the replicas and those that everybody sees.

    Every worker has to take part. What a program assigns while the seen values are shown, as set_weights, load_weights
    and EarlyStopping do, stays on all replicas, and the meetings begin anew with it.

    Args:
        strategy: the strategy of the model.
        meeting: the variables and the rule of their meetings.
        rows: what each replica has trained on since the last meeting.
        seen: "average" or "chief".
        position: returns the number of steps, and the number of steps since the last meeting.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        meeting: Meeting,
        rows: PerReplica,
        *,
        seen: str,
        position: Callable[[], tuple[int, int]],
    ) -> None:
        self._strategy, self._meeting, self._rows = strategy, meeting, rows
        self._seen, self._position = seen, position
        self._shown: _Shown | None = None
        # After which step a program has set variables, and which ones, by id: no mean of equal values rounds them.
        self._set_at: tuple[int, frozenset[int]] = (-1, frozenset())
        self._functions: dict[Any, Any] = {}

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the seen values in a context; within another such context it does nothing."""
        if self._is_shown() or not tf.executing_eagerly():
            yield
            return
        self.show()
        try:
            yield
        finally:
            self.hide()

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Gives each replica its own values in a context, in which they can be saved."""
        if tf.executing_eagerly():
            self._meeting.settle(self._strategy)
        if self._shown is None or not tf.executing_eagerly():
            yield
            return
        variables, step = self._shown.variables, self._shown.step
        seen = _values(variables)
        self.hide()
        own = _values(variables)
        try:
            yield
        finally:
            # If a snapshot has been restored in the context, its values stay.
            if self._position()[0] == step and not any(map(_differ, _values(variables), own)):
                self._shown = _Shown(variables=variables, own=own, seen=seen, step=step)
                _assign(variables, seen)

    def _is_shown(self) -> bool:
        # Training may have gone on with what was shown, in a loop of one's own.
        return self._shown is not None and self._position()[0] == self._shown.step

    def show(self) -> None:
        """Shows the seen values until `hide` is called."""
        if self._is_shown():
            return
        self._meeting.settle(self._strategy)
        step, since = self._position()
        variables = self._variables()
        own = _values(variables)
        seen = own
        # Otherwise the replicas have just met.
        if since > 0 or (self._meeting.keeps_apart and self._meeting.has_begun):
            found = self._compute(variables)
            means = [list(self._strategy.experimental_local_results(value)) for value in found]
            kept = self._set_at[1] if self._set_at[0] == step else frozenset()
            triples = zip(variables, own, means, strict=True)
            seen = [value if id(variable) in kept else mean for variable, value, mean in triples]
            _assign(variables, seen)
        self._shown = _Shown(variables=variables, own=own, seen=seen, step=step)

    def hide(self) -> None:
        """Gives each replica its own values back, unless training has gone on with the seen values."""
        shown, self._shown = self._shown, None
        if shown is None or self._position()[0] != shown.step:
            return
        triples = zip(shown.variables, _values(shown.variables), shown.seen, strict=True)
        are_set = {id(variable) for variable, now, seen in triples if _differ(now, seen)}
        if shown.own is not shown.seen:
            pairs = zip(shown.variables, shown.own, strict=True)
            _assign(shown.variables, [None if id(variable) in are_set else own for variable, own in pairs])
        before = self._set_at[1] if self._set_at[0] == shown.step else frozenset()
        self._set_at = shown.step, before | are_set
        weights = [id(variable) in are_set for variable in self._meeting.weights]
        if any(weights):
            self._meeting.settle(self._strategy)
            self._meeting.restart(self._rows, weights)

    def _variables(self) -> list[tf.Variable]:
        return [*self._meeting.weights, *self._meeting.others]

    def _compute(self, variables: Sequence[tf.Variable]) -> Any:
        has_begun = self._meeting.has_begun

        def of_replica() -> list[tf.Tensor]:
            if self._seen == "average":
                return self._meeting.seen(self._meeting.share(self._rows), has_begun=has_begun)
            return self._meeting.of_first_replica()

        key = has_begun, *map(id, variables)
        if key not in self._functions:
            with self._strategy.scope():
                compute = tf.function(lambda: self._strategy.run(of_replica), autograph=False)
                # Not called as a function: TensorFlow would warn that each set of variables traces it anew.
                self._functions[key] = compute.get_concrete_function()
        return self._functions[key]()


def _values(variables: Sequence[tf.Variable]) -> _Values:
    return [[tf.identity(one) for one in components(variable)] for variable in variables]


def _assign(variables: Sequence[tf.Variable], values: Sequence[Sequence[tf.Tensor] | None]) -> None:
    for variable, found in zip(variables, values, strict=True):
        for component, value in zip(components(variable), found, strict=True) if found is not None else ():
            component.assign(value)


def _differ(values: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> bool:
    """Returns whether some values differ; a NaN is equal to a NaN."""

    def are_equal(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        both_nan = tf.logical_and(tf.not_equal(one, one), tf.not_equal(other, other))
        return tf.reduce_all(tf.logical_or(tf.equal(one, other), both_nan))

    return not all(bool(are_equal(*pair)) for pair in zip(values, others, strict=True))
