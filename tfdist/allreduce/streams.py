"""Streams: runs several collectives of a step at the same time, so that the link is busy while one of them waits.

TensorFlow runs the collectives of a process one after another. The link is idle between two collectives, and while a
collective waits for the other workers. A stream is a sequence of collectives that run in order; different streams run
at the same time. Each new collective is given to the next stream in turn.

Source: CollectiveReplicaLauncher in tensorflow/python/distribute/cross_device_utils.py, which has no public
counterpart.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.equal_slices import add_up_equal_slices
from tfdist.allreduce.packs import DEFAULT_BYTES_PER_PACK

# More streams were not faster on links of 0.1 to 1 Gbit/s, measured with `tfdist bench allreduce`.
STREAMS = 4

_LAUNCHER_ARGUMENTS = ("group_key", "group_size", "collective_keys", "device", "options")

_launchers: weakref.WeakKeyDictionary[Any, list[list[Any]]] = weakref.WeakKeyDictionary()


class Streams:
    """The collectives of one step of one replica; made and used in replica context.

    Args:
        bytes_per_pack: size in bytes of the packs that `packed_all_reduce` sends; None for 2 MiB.

    Attributes:
        bytes_per_pack: size of the packs in bytes.
        splits: whether several packs may share a gradient. The native transport divides long messages itself.
        sent: bytes that this replica sends for the collectives so far: a number if all shapes are known when the step
            is traced, else a float64 tensor. The number assumes a ring of n replicas: 2(n-1)/n times the bytes that are
            summed, and (n-1) times the bytes that are gathered.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> from tfdist.allreduce import Streams
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> total = strategy.run(tf.function(lambda: Streams().all_reduce([tf.constant([1.0, 2.0])])[0]))
        >>> strategy.experimental_local_results(total)[0].numpy().tolist()
        [2.0, 4.0]
    """

    def __init__(self, *, bytes_per_pack: int | None = None) -> None:
        self.bytes_per_pack = bytes_per_pack or DEFAULT_BYTES_PER_PACK
        self._context = tf.distribute.get_replica_context()
        self._replicas = self._context.num_replicas_in_sync
        self._launchers = _launchers_of(self._context)
        self.splits = not communicators_of(self._context.strategy)
        self._turn = 0
        self.sent: Any = 0.0

    def all_reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns each tensor's sum over all replicas; sends every tensor in a separate collective.

        Args:
            tensors: dense tensors, of the same shapes on every replica.
        """
        if self._replicas == 1:
            return list(tensors)
        for tensor in tensors:
            self._count(tensor, 2 * (self._replicas - 1) / self._replicas)
        return self._sums(tensors)

    def _sums(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self._launchers:
            return [self._next().all_reduce(tensor) for tensor in tensors]
        return [self._context.all_reduce(tf.distribute.ReduceOp.SUM, tensor) for tensor in tensors]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the tensors of all replicas, concatenated along the first axis.

        Args:
            tensor: a tensor of one or more axes, of the same shape on every replica.
        """
        if self._replicas == 1:
            return tensor
        self._count(tensor, self._replicas - 1)
        return self._gathered(tensor)

    def _gathered(self, tensor: tf.Tensor) -> tf.Tensor:
        if self._launchers:
            return self._next().all_gather(tensor, 0)
        return self._context.all_gather(tensor, axis=0)

    def all_reduce_slices(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the slices of all replicas as one IndexedSlices; it stands for the sum over replicas.

        Args:
            slices: slices of this replica. Replicas may have different numbers of rows.
        """
        if self._replicas == 1:
            return slices
        self._count(slices.values, self._replicas - 1)
        self._count(slices.indices, self._replicas - 1)
        return add_up_equal_slices(slices, self._context.all_reduce(tf.distribute.ReduceOp.SUM, slices))

    def _next(self) -> Any:
        self._turn += 1
        return self._launchers[self._turn % len(self._launchers)]

    def _count(self, tensor: tf.Tensor, times: float) -> None:
        elements = tensor.shape.num_elements()
        if elements is None:
            elements = tf.cast(tf.size(tensor), tf.float64)
        self.sent += elements * (tensor.dtype.size * times)


def unexpected_launchers(strategy: tf.distribute.Strategy) -> str:
    """Returns how TensorFlow's launchers of collectives differ from those that Streams can copy; "" if they do not.

    Args:
        strategy: a MultiWorkerMirroredStrategy.
    """
    operations = getattr(strategy.extended, "_cross_device_ops", None)
    return why_unexpected(getattr(operations, "_launchers", None))


def why_unexpected(stock: Any) -> str:
    """Returns how launchers differ from those that Streams can copy; "" if they do not.

    Args:
        stock: the launchers of a CollectiveAllReduce.

    Example:
        >>> from tfdist.allreduce.streams import why_unexpected
        >>> why_unexpected(None)
        'CollectiveAllReduce has no list of launchers'
    """
    if not isinstance(stock, list) or not stock:
        return "CollectiveAllReduce has no list of launchers"
    kind = type(stock[0])
    arguments = tuple(inspect.signature(kind).parameters)
    if arguments != _LAUNCHER_ARGUMENTS:
        return f"{kind.__name__} takes {', '.join(arguments)}"
    needed = (*(f"_{name}" for name in _LAUNCHER_ARGUMENTS), "_ordering_token", "all_reduce", "all_gather")
    missing = [name for name in needed if not hasattr(stock[0], name)]
    return f"{kind.__name__} has no {', '.join(missing)}" if missing else ""


def warn_unless_streams(strategy: tf.distribute.Strategy) -> None:
    """Logs a warning if this TensorFlow's launchers are unexpected, so that collectives run one after another.

    Args:
        strategy: a MultiWorkerMirroredStrategy.
    """
    difference = unexpected_launchers(strategy)
    if difference:
        get_logger().warning(
            "packs of gradients are sent one after another instead of %d at a time, because the launchers of "
            "TensorFlow %s are not the expected ones: %s",
            STREAMS,
            tf.__version__,
            difference,
        )


def communicators_of(strategy: tf.distribute.Strategy) -> Sequence[Any]:
    """Returns the communicators of the replicas of this process; none without the native transport."""
    return getattr(strategy, "_tfdist_communicators", ())


def launchers_in_background(strategy: tf.distribute.Strategy) -> Sequence[Any]:
    """Returns the launchers of the replicas of this process whose sums may end in a later step; none if there are none.

    Args:
        strategy: a mirrored or multi-worker mirrored strategy.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or not communicators_of(strategy):
        return ()
    return tuple(strategy.extended._cross_device_ops._launchers)


def _launchers_of(context: Any) -> list[Any]:
    """Returns one launcher per stream for this replica; none if TensorFlow has to order the collectives."""
    strategy = context.strategy
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or tf.executing_eagerly():
        return []
    operations = strategy.extended._cross_device_ops
    if communicators_of(strategy):
        # The native transport sends all collectives at the same time.
        return [operations._launchers[context._replica_id]]
    if unexpected_launchers(strategy):
        return []
    stock = operations._launchers
    if any("GPU" in launcher._device.upper() for launcher in stock):
        # NCCL deadlocks if two processes start collectives in different orders.
        return []
    if operations not in _launchers:
        _launchers[operations] = [[_another(launcher) for _ in range(STREAMS)] for launcher in stock]
    return _launchers[operations][context._replica_id]


def _another(launcher: Any) -> Any:
    """Returns a launcher for the same devices that orders its collectives independently of the given launcher."""
    return type(launcher)(*(getattr(launcher, f"_{name}") for name in _LAUNCHER_ARGUMENTS))
