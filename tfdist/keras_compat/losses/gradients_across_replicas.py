"""Weights the gradients that flow back through a sum over replicas, as in synchronized batch normalization.

With the rule "replica_mean" each replica differentiates its own loss, and its gradient is later multiplied by its share
of the rows. The loss of the global batch is the sum of share * loss over all replicas. A sum over replicas passes the
gradients of all replicas back to each of them, so each gradient is multiplied by the share of the replica that it comes
from, and their sum is divided by the share of the replica that receives it.

The rows of a tensor that are differentiated with respect to another tensor, as in a penalty on gradients, are added up
as on one device, without shares.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch, temporarily

_local = threading.local()


def weight_gradients_across_replicas() -> None:
    """Patches all_reduce and all_gather of the replica context, and the gradient of a tape."""
    from tensorflow.python.distribute import distribute_lib

    distribute_lib.ReplicaContextBase.all_reduce = _all_reduce(distribute_lib.ReplicaContextBase.all_reduce)
    distribute_lib.ReplicaContext.all_gather = _all_gather(distribute_lib.ReplicaContext.all_gather)
    tf.GradientTape.gradient = _gradient(tf.GradientTape.gradient)


def _all_reduce(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return _from_all(_weighted_backwards(lambda given: stock(self, reduce_op, given, options), value))

    return all_reduce


def _all_gather(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def all_gather(self: Any, value: Any, axis: Any, options: Any = None) -> Any:
        return _from_all(_weighted_backwards(lambda given: stock(self, given, axis, options), value))

    return all_gather


def _from_all(value: Any) -> Any:
    """Notes that a value is that of all replicas, and returns it."""
    batch = current_batch()
    if batch is not None:
        batch.totals.extend(tf.nest.flatten(value))
    return value


def _weighted_backwards(combine: Callable[[Any], Any], value: Any) -> Any:
    """Combines the values of all replicas, so that gradients are weighted on their way back."""
    from tensorflow.python.eager import record

    batch = current_batch()
    tensors = tf.nest.flatten(value)
    are_dense = all(isinstance(one, tf.Tensor) and one.dtype.is_floating for one in tensors)
    if batch is None or not are_dense or not record.should_record_backprop(tensors):
        return combine(value)
    given = tf.nest.map_structure(lambda one: _scaled_backwards(one, batch, tf.math.divide_no_nan), value)
    return tf.nest.map_structure(lambda one: _scaled_backwards(one, batch, tf.math.multiply_no_nan), combine(given))


def _scaled_backwards(value: tf.Tensor, batch: GlobalBatch, scale: Callable[[Any, Any], Any]) -> tf.Tensor:
    @tf.custom_gradient
    def identity(given: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # Asked for here, because a program may divide its loss only after the forward pass.
            if getattr(_local, "adds_rows", False) or not batch.is_replica_mean:
                return upstream
            return scale(upstream, batch.share(upstream.dtype))

        return tf.identity(given), gradient

    return identity(value)


def _gradient(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        batch = current_batch()
        if batch is not None:
            batch.targets.extend(one for one in tf.nest.flatten(target) if tf.is_tensor(one))
        of_variables = any(hasattr(one, "assign") for one in tf.nest.flatten(sources))
        has_rows = any(tf.is_tensor(one) and one.shape.rank != 0 for one in tf.nest.flatten(target))
        with temporarily(_local, adds_rows=has_rows and not of_variables):
            return stock(self, target, sources, *args, **kwargs)

    return gradient
