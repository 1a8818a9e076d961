"""SeenValues: gives all replicas their common values for a while, and then gives each replica its own values back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.allreduce.per_replica import PerReplica
from tfdist.averaging.meeting import Meeting


class SeenValues:
    """Changes the variables of a model between the values of the replicas and those that everybody sees.

    Every worker has to take part.

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
        # The values of each variable on each replica of this process, while the seen values are shown.
        self._own: list[list[tf.Tensor]] | None = None
        self._shown_at = -1
        self._functions: dict[int, Any] = {}

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the seen values in a context; within another such context it does nothing."""
        if self._own is not None or not tf.executing_eagerly():
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
        if self._own is None or not tf.executing_eagerly():
            yield
            return
        seen = [[tf.identity(one) for one in _components(variable)] for variable in self._variables()]
        own, at = self._own, self._shown_at
        self.hide()
        try:
            yield
        finally:
            self._assign(seen)
            self._own, self._shown_at = own, at

    def show(self) -> None:
        """Shows the seen values until `hide` is called."""
        if self._own is not None:
            return
        self._shown_at, since = self._position()
        variables = self._variables()
        if since == 0 and not self._meeting.keeps_apart:
            # The replicas have just met.
            self._own = []
            return
        self._own = [[tf.identity(one) for one in _components(variable)] for variable in variables]
        found = [self._strategy.experimental_local_results(value) for value in self._compute(len(variables))]
        self._assign(found)

    def hide(self) -> None:
        """Gives each replica its own values back, unless training has gone on with the seen values."""
        own, self._own = self._own, None
        if own and self._position()[0] == self._shown_at:
            self._assign(own)

    def _variables(self) -> list[tf.Variable]:
        return [*self._meeting.weights, *self._meeting.others]

    def _assign(self, values: Any) -> None:
        for variable, found in zip(self._variables(), values, strict=True):
            for component, value in zip(_components(variable), found, strict=True):
                component.assign(value)

    def _compute(self, variables: int) -> Any:
        def of_replica() -> list[tf.Tensor]:
            if self._seen == "average":
                weight = self._meeting.share(self._rows)
            else:
                first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
                weight = tf.cast(first, tf.float64)
            return self._meeting.seen(weight)

        if variables not in self._functions:
            with self._strategy.scope():
                compute = tf.function(lambda: self._strategy.run(of_replica), autograph=False)
                # Not called as a function: TensorFlow would warn that each set of variables traces it anew.
                self._functions[variables] = compute.get_concrete_function()
        return self._functions[variables]()


def _components(variable: Any) -> tuple[Any, ...]:
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)
