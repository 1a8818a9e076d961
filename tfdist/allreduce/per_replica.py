"""PerReplica: a variable with a value of its own on every replica, all of which a checkpoint keeps."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.trackable.base import Trackable


class PerReplica(Trackable):
    """A variable that every replica reads and writes by itself.

    A checkpoint stores the values of all replicas of all workers, so that each gets back its own; on another number of
    replicas each gets an equal share of their sum. Saving and restoring are for every worker to take part in.

    Args:
        initial: the first value, the same on every replica.
        name: of the variable.
        shared: whether it counts what all replicas do, so that it is not to be divided among another number of them.

    Source: TensorFlow's own variables of this kind store the sum or the first replica's value.
    """

    def __init__(self, initial: Any, *, name: str, shared: bool = False) -> None:
        self._shared = shared
        self._strategy = tf.distribute.get_strategy()
        self._variable = tf.Variable(
            initial,
            trainable=False,
            name=name,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.NONE,
        )

    def read(self) -> tf.Tensor:
        """Returns this replica's value; in replica context."""
        return self._variable.read_value()

    def assign(self, value: tf.Tensor) -> Any:
        """Sets this replica's value; in replica context."""
        return self._variable.assign(value)

    def local(self) -> tf.Tensor:
        """Returns the value of this process's first replica; outside of replicas."""
        return self._strategy.experimental_local_results(self._variable)[0].read_value()

    def values(self) -> tf.Tensor:
        """Returns the values of all replicas, along a new first axis; outside of replicas, by every worker."""

        @tf.function(autograph=False)
        def gathered() -> tf.Tensor:
            own = self._strategy.run(lambda: self._variable.read_value()[None])
            return self._strategy.gather(own, axis=0)

        with self._strategy.scope():
            return gathered()

    def restore(self, values: tf.Tensor) -> None:
        """Gives every replica its own of `values`; outside of replicas, by every worker."""
        replicas = self._strategy.num_replicas_in_sync
        if values.shape[0] != replicas:
            # What is left unsent is in the sum of all, however it is divided.
            share = tf.reduce_sum(values, 0, keepdims=True) / replicas
            values = tf.repeat(values[:1] if self._shared else tf.cast(share, values.dtype), replicas, axis=0)
        rows = tf.convert_to_tensor(values)

        def assign() -> None:
            context = tf.distribute.get_replica_context()
            self._variable.assign(tf.gather(rows, context.replica_id_in_sync_group))

        with self._strategy.scope():
            tf.function(self._strategy.run, autograph=False)(assign)

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"values": self.values()}

    def _restore_from_tensors(self, restored: dict[str, tf.Tensor]) -> None:
        self.restore(restored["values"])
