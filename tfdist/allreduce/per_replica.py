"""PerReplica: a variable with a separate value on every replica; a checkpoint keeps all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable


class PerReplica(Trackable):
    """A variable that every replica reads and writes independently.

    A checkpoint stores the values of all replicas of all workers, and each replica gets its own value back. Restored to
    another number of replicas, each replica gets an equal share of the sum of all values. Every worker has to take part
    in saving and restoring.

    Args:
        initial: the first value, the same on every replica.
        name: name of the variable.
        shared: whether the value is equal on all replicas, such as a step counter: it is then copied to another number
            of replicas instead of divided among them.
        combine: "sum" or "mean": what stays the same if the number of replicas changes.

    Source: TensorFlow's own ON_READ variables store the sum or the first replica's value.
    """

    def __init__(self, initial: Any, *, name: str, shared: bool = False, combine: str = "sum") -> None:
        self._shared, self._combine = shared, combine
        self._before_reading: Callable[[], None] | None = None
        self._strategy = tf.distribute.get_strategy()
        self._variable = tf.Variable(
            initial,
            trainable=False,
            name=name,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.NONE,
        )
        # For snapshots, which see only the variable.
        self._variable._tfdist_is_sum = not shared and combine == "sum"

    def read(self) -> tf.Tensor:
        """Returns this replica's value; called in replica context."""
        return self._variable.read_value()

    def assign(self, value: tf.Tensor) -> Any:
        """Sets this replica's value; called in replica context."""
        return self._variable.assign(value)

    def local(self) -> tf.Tensor:
        """Returns the value of this process's first replica; called outside of replicas."""
        return self.local_values()[0]

    def local_values(self) -> list[tf.Tensor]:
        """Returns the values of this process's replicas; called outside of replicas."""
        return [value.read_value() for value in self._strategy.experimental_local_results(self._variable)]

    def assign_local(self, values: Sequence[Any]) -> None:
        """Sets the values of this process's replicas; called outside of replicas.

        Args:
            values: a value for each of these replicas.
        """
        for one, value in zip(self._strategy.experimental_local_results(self._variable), values, strict=True):
            one.assign(value)

    def call_before_reading(self, function: Callable[[], None]) -> None:
        """Lets `values`, and so a checkpoint, call a function first.

        Args:
            function: brings the variable to a state that can be stored; called outside of replicas, by every worker.
        """
        self._before_reading = function

    def values(self) -> tf.Tensor:
        """Returns the values of all replicas along a new first axis; called outside of replicas, by every worker."""
        if self._before_reading is not None:
            self._before_reading()

        @tf.function(autograph=False)
        def gathered() -> tf.Tensor:
            own = self._strategy.run(lambda: self._variable.read_value()[None])
            return self._strategy.gather(own, axis=0)

        with self._strategy.scope():
            # Not called as a function: TensorFlow would warn that each variable traces it anew.
            return gathered.get_concrete_function()()

    def restore(self, values: tf.Tensor) -> None:
        """Assigns to every replica its row of `values`; called outside of replicas, by every worker."""
        replicas = self._strategy.num_replicas_in_sync
        if values.shape[0] != replicas:
            # Only the sum of residuals matters: it is the part of the gradients that has not been sent.
            parts = replicas if self._combine == "sum" else values.shape[0]
            share = tf.reduce_sum(values, 0, keepdims=True) / tf.cast(parts, values.dtype)
            values = tf.repeat(values[:1] if self._shared else tf.cast(share, values.dtype), replicas, axis=0)
        rows = tf.convert_to_tensor(values)

        def assign() -> None:
            context = tf.distribute.get_replica_context()
            self._variable.assign(tf.gather(rows, context.replica_id_in_sync_group))

        with self._strategy.scope():
            tf.function(lambda: self._strategy.run(assign), autograph=False).get_concrete_function()()

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"values": self.values()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        self.restore(restored["values"])
