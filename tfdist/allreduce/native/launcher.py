"""NativeLauncher: starts collectives of the native transport where TensorFlow would start its own."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from tfdist.allreduce.native.communicator import Communicator
from tfdist.allreduce.native.library import operations

_ALL_REDUCE, _ALL_GATHER = 1, 3
_FOREVER_SECONDS = 1e9
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
        if not _takes(value):
            return super().all_reduce(input_tensor, control_input, options)
        with tf.device(self._device), self._control_input(control_input):
            total = self._run(value, _ALL_REDUCE, options)
            total.set_shape(value.shape)
            return total

    def _all_gather(self, input_tensor: Any, options: Any) -> tf.Tensor:
        """Returns the tensors of all replicas, concatenated along the first axis; they have the same shape."""
        value = tf.convert_to_tensor(input_tensor)
        if not _takes(value) or value.shape.rank == 0:
            return super()._all_gather(input_tensor, options)
        with tf.device(self._device):
            gathered = self._run(value, _ALL_GATHER, options)
            if value.shape.rank is not None:
                rows = value.shape[0]
                gathered.set_shape([None if rows is None else rows * self._group_size, *value.shape[1:]])
            return gathered

    def start_all_reduce(self, value: tf.Tensor) -> tf.Tensor:
        """Starts the sum of the tensors of all replicas, and returns its number, an int64 scalar, for `finish`.

        Args:
            value: a tensor of one of the DTYPES, outside of XLA.
        """
        with tf.device(self._device):
            return self._start(value, _ALL_REDUCE, None, keeps=1)

    def finish(self, operation: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
        """Returns the sum that start_all_reduce has started, in this step or a former one.

        Args:
            operation: what start_all_reduce has returned; used once.
            spec: shape and dtype of the sum.
        """
        with tf.device(self._device):
            total = operations().tfdist_wait(operation=operation, T=spec.dtype)
            total.set_shape(spec.shape)
            return total

    def _run(self, value: tf.Tensor, kind: int, options: Any) -> tf.Tensor:
        return operations().tfdist_wait(operation=self._start(value, kind, options), T=value.dtype)

    def _start(self, value: tf.Tensor, kind: int, options: Any, *, keeps: int = 0) -> tf.Tensor:
        timeout = self._options.merge(options).timeout_seconds
        return operations().tfdist_start(
            value=value,
            key=self._next_instance_key(),
            token=self._get_ordering_token(),
            communicator=self.communicator.number,
            kind=kind,
            group=self._group_key,
            ranks=self._group_size,
            keeps=keeps,
            timeout_seconds=timeout or _FOREVER_SECONDS,
        )


def _takes(value: tf.Tensor) -> bool:
    # XLA compiles TensorFlow's collectives, and not these operations.
    return value.dtype.name in DTYPES and not GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
