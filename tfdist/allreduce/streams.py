"""Collectives side by side: while one of them waits for its peers, another one has the link.

TensorFlow chains the collectives of a process, one behind the other: between two of them, and in every round of one,
the link idles. Here there are several chains, to which collectives are given in turn.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK

# More than these gain nothing on links of 0.1 to 1 Gbit/s, see `tfdist bench allreduce`.
STREAMS = 4

_launchers: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()


class Streams:
    """The collectives of one step of one replica; to be made and used in replica context.

    Args:
        bytes_per_pack: size of the packs that tensors are sent in, see `packed_all_reduce`; None for the default.

    Attributes:
        bytes_per_pack: size of the packs.
        sent: bytes that this replica has to send for the collectives so far: a number where the sizes are known while
            the step is traced, else a float64 tensor. A ring is supposed: 2(n-1)/n of what is summed, (n-1) times what
            is gathered.
    """

    def __init__(self, *, bytes_per_pack: int | None = None) -> None:
        self.bytes_per_pack = bytes_per_pack or DEFAULT_BYTES_PER_PACK
        self._context = tf.distribute.get_replica_context()
        self._replicas = self._context.num_replicas_in_sync
        self._launchers = _launchers_of(self._context)
        self._turn = 0
        self.sent: Any = 0.0

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns each tensor's sum over all replicas; every tensor is a collective of its own.

        Args:
            tensors: dense, of the same shapes on every replica.
        """
        if self._replicas == 1:
            return list(tensors)
        for tensor in tensors:
            self._count(tensor, 2 * (self._replicas - 1) / self._replicas)
        if self._launchers:
            return [self._next().all_reduce(tensor) for tensor in tensors]
        return [self._context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensors of all replicas, behind each other along the first axis.

        Args:
            tensor: of one axis or more, and of the same shape on every replica.
        """
        if self._replicas == 1:
            return tensor
        self._count(tensor, self._replicas - 1)
        if self._launchers:
            return self._next().all_gather(tensor, 0)
        return self._context.all_gather(tensor, axis=0)

    def all_reduce_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the slices of all replicas together."""
        if self._replicas == 1:
            return slices
        self._count(slices.values, self._replicas - 1)
        self._count(slices.indices, self._replicas - 1)
        return self._context.all_reduce(tf.distribute.ReduceOp.SUM, slices)

    def _next(self) -> Any:
        self._turn += 1
        return self._launchers[self._turn % len(self._launchers)]

    def _count(self, tensor: tf.Tensor, times: float) -> None:
        elements = tensor.shape.num_elements()
        if elements is None:
            elements = tf.cast(tf.size(tensor), tf.float64)
        self.sent += elements * (tensor.dtype.size * times)


def _launchers_of(context: Any) -> list[Any]:
    """Returns what starts the collectives of this replica, a chain each; none where TensorFlow has to order them."""
    strategy = context.strategy
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or tf.executing_eagerly():
        return []
    operations = strategy.extended._cross_device_ops
    stock = getattr(operations, "_launchers", [])
    if not stock or any("GPU" in launcher._device.upper() for launcher in stock):
        # NCCL deadlocks where two processes start its collectives in different orders.
        return []
    if operations not in _launchers:
        _launchers[operations] = [[_another(launcher) for _ in range(STREAMS)] for launcher in stock]
    return _launchers[operations][context._replica_id]


def _another(launcher: Any) -> Any:
    """Returns a launcher of the same group with a chain of its own."""
    return type(launcher)(
        launcher._group_key, launcher._group_size, launcher._collective_keys, launcher._device, launcher._options
    )
