"""Collectives: sums, gathers and broadcasts over all replicas in a step, and over all workers outside of one.

In replica context, such as in `train_step`, a call gives and gets the tensor of one replica. Outside of replicas, a
call gives and gets the tensor of one worker; all workers make the same calls in the same order, inside of
`strategy.scope()`. Outside of both, a call is about this process alone: it returns the process's own tensor, and the
log says so if there are other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import tfdist._needs_tensorflow  # noqa: F401  # isort: skip
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.cluster.others import other_workers
from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.workers import count_workers, saying_what_it_waits_for, worker_index

__all__ = ["all_gather", "all_reduce", "barrier", "broadcast"]

_said: list[bool] = []


def all_reduce(tensor: tf.Tensor, op: Literal["sum", "mean"] = "sum") -> tf.Tensor:
    """Returns the sum or the mean of the tensors of all replicas, or of all workers outside of replicas.

    In replica context gradients flow through it: the gradient of a sum is the sum of the gradients of all replicas.

    Args:
        tensor: a tensor of numbers, of the same shape and dtype on all replicas.
        op: "sum" or "mean".

    Raises:
        ValueError: for another op, and for a tensor of booleans or text.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> total = strategy.run(tf.function(lambda: tfdist.collectives.all_reduce(tf.constant([1.0, 2.0]))))
        >>> strategy.experimental_local_results(total)[0].numpy().tolist()
        [2.0, 4.0]
    """
    if op not in ("sum", "mean"):
        raise ValueError(f"expected op to be 'sum' or 'mean', received {op!r}.")
    tensor = tf.convert_to_tensor(tensor)
    if not (tensor.dtype.is_integer or tensor.dtype.is_floating or tensor.dtype.is_complex):
        raise ValueError(f"expected numbers for all_reduce, received {tensor.dtype.name}; use tf.cast.")
    if tensor.dtype.is_complex:
        # TensorFlow adds up no complex numbers of several replicas.
        parts = all_reduce(tf.stack([tf.math.real(tensor), tf.math.imag(tensor)]), op)
        return tf.complex(parts[0], parts[1])
    context = tf.distribute.get_replica_context()
    kind = tf.distribute.ReduceOp.SUM if op == "sum" else tf.distribute.ReduceOp.MEAN
    if context is not None and _is_in_step():
        return context.all_reduce(kind, tf.identity(tensor))
    total = _of_workers(tensor, lambda strategy, values: strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None))
    return total if op == "sum" else total / tf.cast(count_workers(tf.distribute.get_strategy()), total.dtype)


def broadcast(tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
    """Returns the tensor of one replica on all replicas, or that of one worker on all workers; the bits stay the same.

    No gradient flows through it.

    Args:
        tensor: a tensor of numbers or booleans, of the same shape and dtype on all replicas.
        root: which replica's tensor; outside of replicas, which worker's.

    Raises:
        ValueError: if there is no such replica or worker, and for a tensor of text.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> strategy = tfdist.create_strategy("mirrored", devices=2)
        >>> def of_replica_1():
        ...     own = tf.distribute.get_replica_context().replica_id_in_sync_group
        ...     return tfdist.collectives.broadcast(tf.cast(own, tf.float32), root=1)
        >>> strategy.experimental_local_results(strategy.run(tf.function(of_replica_1)))[0].numpy().item()
        1.0
    """
    tensor = tf.convert_to_tensor(tensor)
    strategy = tf.distribute.get_strategy()
    context = tf.distribute.get_replica_context() if _is_in_step() else None
    number, own = (
        (context.num_replicas_in_sync, context.replica_id_in_sync_group)
        if context is not None
        else (count_workers(strategy), worker_index(strategy))
    )
    if not 0 <= root < number:
        raise ValueError(f"expected root to be from 0 to {number - 1}, received {root}.")
    if tensor.dtype == tf.string:
        raise ValueError("expected numbers or booleans for broadcast, received text; use all_gather, and take a row.")
    if number == 1:
        return tensor
    # Sums of whole numbers, all but one of them 0, keep the bits: also those of -0.0 and of NaN.
    bits = _as_integers(tensor, is_native=bool(getattr(strategy, "_tfdist_communicators", ())))
    total = all_reduce(tf.where(tf.equal(own, root), bits, tf.zeros_like(bits)))
    return _from_integers(total, tensor.dtype)


def barrier() -> tf.Tensor:
    """Waits for all replicas, or for all workers outside of replicas.

    Returns:
        The number of replicas or workers, as int32. In a tf.function, what depends on this tensor runs after the wait.
        The function ends after the wait in any case.

    Raises:
        ValueError: outside of `strategy.scope()`, if there are other workers.

    Example:
        >>> import tfdist
        >>> with tfdist.create_strategy("one_device").scope():
        ...     int(tfdist.collectives.barrier())
        1
    """
    others = _workers_left_out()
    if others:
        raise ValueError(
            f"expected barrier to be called inside of strategy.scope(), received a call outside, which would wait for "
            f"none of the {others} other workers; write `with strategy.scope():` around it."
        )
    with saying_what_it_waits_for("come to tfdist.collectives.barrier"):
        return all_reduce(tf.ones([], tf.int32))


def all_gather(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all replicas, in the order of the replicas; gradients flow back to each replica's own rows.

    A loss that every replica computes from the gathered rows, such as a contrastive loss, has the value and the
    gradients of one device. On one device the function returns its argument. Outside of replicas it returns the rows of
    all workers, in the order of the workers.

    Args:
        tensor: tensor of one or more axes. The replicas' tensors may differ in the first axis only.

    Raises:
        ValueError: for a tensor without axes.

    Example:
        >>> import tensorflow as tf, tfdist
        >>> strategy = tfdist.create_strategy("one_device")
        >>> def similarities(own):
        ...     rows = tfdist.collectives.all_gather(own)
        ...     return tf.matmul(rows, rows, transpose_b=True)
        >>> strategy.run(similarities, args=(tf.constant([[1.0], [2.0]]),)).numpy().tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """
    tensor = tf.convert_to_tensor(tensor)
    context = tf.distribute.get_replica_context()
    if tensor.shape.rank == 0:
        raise ValueError("expected a tensor with rows for all_gather, received a scalar; add an axis.")
    if context is None or not _is_in_step():
        return _of_workers(tensor, lambda strategy, values: strategy.gather(values, axis=0), others=tensor[:0])
    if context.num_replicas_in_sync == 1:
        return tensor
    batch = current_batch()
    rows = tf.shape(tensor)[0]
    # TensorFlow gathers on the device of the tensor, which only an operation such as tf.identity has.
    rows_of_replicas = context.all_gather(tf.identity(rows[tf.newaxis]), axis=0)
    before = tf.reduce_sum(rows_of_replicas[: context.replica_id_in_sync_group])
    by_share = batch is not None and batch.is_replica_mean

    @tf.custom_gradient
    def gathered(own: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # The loss of the global batch is the sum over replicas of share * loss, and the gradient of this replica
            # is multiplied by its share later. Without shares the losses are added up.
            share = batch.share(upstream.dtype) if by_share and batch is not None else tf.ones([], upstream.dtype)
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.math.multiply_no_nan(upstream, share))
            return tf.math.divide_no_nan(total[before : before + rows], share)

        # One collective after the other, in the same order on every replica.
        with tf.control_dependencies([rows_of_replicas]):
            return context.all_gather(tf.identity(own), axis=0), gradient

    everyones = gathered(tensor)
    if batch is not None:
        batch.totals.append(everyones)
    return everyones


def _is_in_step() -> bool:
    """Returns whether the caller is one of several replicas, or runs without any strategy."""
    # A model that is called outside of the strategy, as for an evaluation by the chief alone, means this process.
    if not _said and tf.executing_eagerly() and _workers_left_out():
        _said.append(True)
        get_logger().warning(
            "a function of tfdist.collectives was called outside of strategy.scope(): it returns the tensor of this "
            "worker alone; write `with strategy.scope():` around it"
        )
    return tf.distribute.in_cross_replica_context() is False


def _workers_left_out() -> int:
    return 0 if tf.distribute.has_strategy() else other_workers()[0]


def _of_workers(
    tensor: tf.Tensor,
    collective: Callable[[tf.distribute.Strategy, Any], tf.Tensor],
    *,
    others: tf.Tensor | None = None,
) -> tf.Tensor:
    """Returns the result of a collective in which each worker counts once.

    Args:
        tensor: of this worker.
        collective: takes the strategy, and the tensors of its replicas.
        others: what all replicas of a worker but the first one contribute; None for zeros.
    """
    strategy = tf.distribute.get_strategy()
    workers = count_workers(strategy)
    if workers == 1:
        return tensor
    replicas = strategy.num_replicas_in_sync // workers
    nothing = tf.zeros_like(tensor) if others is None else others

    def of_replica(context: Any) -> tf.Tensor:
        return tensor if context.replica_id_in_sync_group % replicas == 0 else nothing

    return collective(strategy, strategy.experimental_distribute_values_from_function(of_replica))


def _as_integers(tensor: tf.Tensor, *, is_native: bool) -> tf.Tensor:
    """Returns whole numbers of a type that the transport adds up: tfdist-native all, TensorFlow int32 and int64."""
    if tensor.dtype == tf.bool:
        return tf.cast(tensor, tf.uint8 if is_native else tf.int32)
    if tensor.dtype.is_integer:
        return tensor if is_native else tf.cast(tensor, tf.int64)
    # A complex128 becomes two numbers.
    bits = tf.bitcast(tensor, {2: tf.int16, 4: tf.int32, 8: tf.int64, 16: tf.int64}[tensor.dtype.size])
    return tf.cast(bits, tf.int32) if bits.dtype == tf.int16 and not is_native else bits


def _from_integers(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    if dtype == tf.bool or dtype.is_integer:
        return tf.cast(bits, dtype)
    return tf.bitcast(tf.cast(bits, tf.int16) if dtype.size == 2 else bits, dtype)
