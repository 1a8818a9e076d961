"""The results of a tf.function that are values of a replica, and therefore cannot be compared with one device."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class ReturnedByRun:
    """Knows which results of a tf.function come from strategy.run as they are.

    On several replicas of a process such a result is a PerReplica value. On one device, and on a worker with one
    replica, it is a tensor like any other, which is the value of the rows of this replica.
    """

    def __init__(self) -> None:
        self._traced: list[tuple[Any, list[Any]]] = []
        self._reduced: list[Any] = []

    def reduced(self, value: Any) -> Any:
        """Returns a copy of what strategy.reduce has returned while a function was traced, and remembers it.

        On one device, strategy.reduce returns what it was given.
        """
        copy = tf.nest.map_structure(tf.identity, value)
        self._reduced += tf.nest.flatten(copy)
        return copy

    def note(self, returned: Any) -> None:
        """Remembers what strategy.run has returned while a function was traced."""
        if not tf.executing_eagerly():
            self._traced.append((tf.compat.v1.get_default_graph(), tf.nest.flatten(returned)))

    def without(self, result: Any) -> list[Any]:
        """Returns the values in the result of a function, with None in place of those of a replica.

        Args:
            result: a structure that a tf.function has returned.
        """
        values = tf.nest.flatten(result)
        for graph, returned in self._traced:
            outputs = tf.nest.flatten(getattr(graph, "structured_outputs", None))
            if len(outputs) == len(values):
                values = [
                    None if self._is_of_replica(output, returned) else value
                    for output, value in zip(outputs, values, strict=True)
                ]
        return values

    def _is_of_replica(self, output: Any, returned: list[Any]) -> bool:
        while isinstance(output, tf.Tensor) and all(output is not one for one in self._reduced):
            if any(output is one for one in returned):
                return True
            # The outputs of a function are copies.
            output = output.op.inputs[0] if output.op.type == "Identity" else None
        return False
