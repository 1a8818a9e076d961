"""NativeLauncher: starts collectives of the native transport where TensorFlow would start its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfdist.allreduce.native.communicator import Communicator
from tfdist.allreduce.native.library import operations
from tfdist.allreduce.native.local_starts import remember_start, remember_wait

_ALL_REDUCE, _ALL_GATHER, _SEND, _RECEIVE = 1, 3, 5, 6
FLOATS = ("float64", "float32", "float16", "bfloat16")
DTYPES = frozenset([*FLOATS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))])


class NativeLauncher(CollectiveReplicaLauncher):
    """Replaces a launcher of TensorFlow for the replica of a communicator.

    Sums and gathers of numbers go through the native transport; all else is left to TensorFlow. TensorFlow's keys tell
    the collectives apart, as for its own.

    Args:
        stock: the launcher that is replaced.
        communicator: the connections of the same replica.
    """

    def __init__(self, stock: CollectiveReplicaLauncher, communicator: Communicator) -> None:
        self.__dict__.update(stock.__dict__)
        self.communicator = communicator

    def all_reduce(self, input_tensor: Any, control_input: Any = None, options: Any = None) -> tf.Tensor:
        """Returns the sum of the tensors of all replicas."""
        value = tf.convert_to_tensor(input_tensor)
        if not self._takes(value):
            return super().all_reduce(input_tensor, control_input, options)
        with tf.device(self._device), self._control_input(control_input):
            total = self._run(value, _ALL_REDUCE, options)
            total.set_shape(value.shape)
            return total

    def _all_gather(self, input_tensor: Any, options: Any) -> tf.Tensor:
        """Returns the tensors of all replicas, concatenated along the first axis; they have the same shape."""
        value = tf.convert_to_tensor(input_tensor)
        if not self._takes(value) or value.shape.rank == 0:
            return super()._all_gather(input_tensor, options)
        with tf.device(self._device):
            gathered = self._run(value, _ALL_GATHER, options)
            if value.shape.rank is not None:
                rows = value.shape[0]
                gathered.set_shape([None if rows is None else rows * self._group_size, *value.shape[1:]])
            return gathered

    def all_reduce_indexed_slices(self, input_slices: tf.IndexedSlices, options: Any = None) -> tf.IndexedSlices:
        """Returns the slices of all replicas, one replica after another; they may have different numbers of rows.

        TensorFlow gathers in a tf.cond of the replica, where a replica waits for another one that has failed.
        """
        values, indices = input_slices.values, input_slices.indices
        if not (self._takes(values) and self._takes(indices)):
            return super().all_reduce_indexed_slices(input_slices, options)
        with tf.device(self._device):
            rows = self._all_gather(tf.shape(indices), options)
            longest = tf.reduce_max(rows)
            are_equal = tf.equal(tf.reduce_min(rows), longest)

            def gathered(tensor: tf.Tensor) -> tf.Tensor:
                more = [[0, longest - tf.shape(tensor)[0]], *[[0, 0]] * (tensor.shape.rank - 1)]
                everyones = self._all_gather(tf.pad(tensor, more), options)
                of_replicas = [(i * longest, rows[i]) for i in range(self._group_size)]
                return tf.cond(
                    are_equal,
                    lambda: tf.identity(everyones),
                    lambda: tf.concat([everyones[begin : begin + size] for begin, size in of_replicas], 0),
                )

            return tf.IndexedSlices(gathered(values), gathered(indices), input_slices.dense_shape)

    def start_all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Starts the sum of the tensors of all replicas, and returns its number, an int64 scalar, for `finish`.

        Args:
            value: a tensor of this replica.

        Raises:
            ValueError: if the native transport cannot send the tensor.
        """
        return self._start_in_background(value, _ALL_REDUCE)

    def start_all_gather(self, value: tf.Tensor) -> tf.Tensor:
        """Starts to gather the tensors of all replicas along the first axis; returns a number as start_all_reduce does.

        Args:
            value: a tensor of this replica, of one or more axes.

        Raises:
            ValueError: if the native transport cannot send the tensor.
        """
        return self._start_in_background(value, _ALL_GATHER)

    def finish(self, operation: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Returns what start_all_reduce or start_all_gather has started, in this step or a former one.

        Args:
            operation: what they have returned; used once.
            spec: shape and dtype of the result.
        """
        with tf.device(self._device):
            total = operations().tfdist_wait(operation=operation, T=spec.dtype)
            total.set_shape(spec.shape)
            return total

    def exchange(
        self, value: tf.Tensor, *, to: int, source: int, like: tf.Tensor | None = None, timeout_seconds: float | None
    ) -> Callable[[], tf.Tensor]:
        """Starts to send a tensor to one rank and to receive one from another.

        All ranks start the same exchanges in the same order, each with peers of its own.

        Args:
            value: the tensor of this rank.
            to: the rank that receives it.
            source: the rank whose tensor this rank receives.
            like: a tensor of the shape of what is received; None if it is that of `value`.
            timeout_seconds: how long to wait for the two ranks; None waits as long as for all ranks.

        Returns:
            A function that waits for both, and returns the received tensor.

        Raises:
            ValueError: if the native transport cannot send the tensor.
        """
        self._check_taken(value)
        like = value if like is None else like
        key = self._next_instance_key()
        with tf.device(self._device):
            sent = self._start(value, key, _SEND, timeout_seconds, peer=to)
            started = self._start(like, key, _RECEIVE, timeout_seconds, peer=source)

        def wait() -> tf.Tensor:
            with tf.device(self._device):
                received = self._wait(started, like.dtype)
                # Outside of functions, the tensor is sent when this returns; in a function, when the function returns.
                with tf.control_dependencies([self._wait(sent, value.dtype)]):
                    received = tf.identity(received)
                received.set_shape(like.shape)
                return received

        return wait

    def _run(self, value: tf.Tensor, kind: int, options: Any) -> tf.Tensor:
        timeout = self._options.merge(options).timeout_seconds
        return self._wait(self._start(value, self._next_instance_key(), kind, timeout), value.dtype)

    def _start_in_background(self, value: tf.Tensor, kind: int) -> Any:
        self._check_taken(value)
        with tf.device(self._device):
            key = self._next_instance_key()
            return self._start(value, key, kind, self._options.timeout_seconds, keeps=1).operation

    def _start(self, value: tf.Tensor, key: Any, kind: int, timeout_seconds: float | None, **options: int) -> _Started:
        operation = operations().tfdist_start(
            value=value,
            key=key,
            token=self._get_ordering_token(),
            communicator=self.communicator.number,
            kind=kind,
            group=self._group_key,
            ranks=self._group_size,
            timeout_seconds=timeout_seconds or self.communicator.timeout_seconds,
            **options,
        )
        if tf.executing_eagerly():
            return _Started(operation)
        return _Started(operation, remember_start(operation.op, group=self._group(), replica=self.communicator.rank))

    def _wait(self, started: _Started, dtype: tf.DType) -> tf.Tensor:
        total = operations().tfdist_wait(operation=started.operation, T=dtype)
        if not tf.executing_eagerly():
            remember_wait(total.op, started.number, group=self._group(), replica=self.communicator.rank)
            # A function waits for a result that it does not use too: a barrier has no other.
            automatic = total.graph.experimental_acd_manager
            if automatic is not None:
                automatic.run_independently(total.op)
        return total

    def _takes(self, value: tf.Tensor) -> bool:
        # XLA compiles TensorFlow's collectives, and not these operations. In a graph of TensorFlow 1 there is no token.
        is_compiled = GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
        return value.dtype.name in DTYPES and not is_compiled and self._get_ordering_token() is not None

    def _check_taken(self, value: tf.Tensor) -> None:
        if not self._takes(value):
            raise ValueError(
                "expected numbers, outside of functions that XLA compiles, to be sent to other replicas, received the "
                f"dtype {value.dtype.name}; leave jit_compile=True out."
            )

    def _group(self) -> Any:
        # The launchers of a strategy share both.
        return self._collective_keys, self._group_key


@dataclasses.dataclass(frozen=True)
class _Started:
    """An operation that has been started.

    Attributes:
        operation: its number, an int64 scalar.
        number: which collective of its graph it is; not used outside of graphs.
    """

    operation: tf.Tensor
    number: int = 0
