"""Walks through the graph of a step, to find out how a program computes a loss or a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf


def _inputs(tensor: tf.Tensor) -> Iterable[tf.Tensor]:
    return tensor.op.inputs


def reached(first: tf.Tensor, following: Callable[[tf.Tensor], Iterable[tf.Tensor]] = _inputs) -> Iterator[tf.Tensor]:
    """Yields a tensor and all that can be reached from it, each once.

    Args:
        first: where to begin. An eager tensor has no graph, so that it is the only one.
        following: returns the tensors after one; by default those from which it is computed.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.reached import reached
        >>> with tf.Graph().as_default():
        ...     half = tf.constant(4.0) / tf.constant(2.0)
        ...     [tensor.op.type for tensor in reached(half)]
        ['RealDiv', 'Const', 'Const']
    """
    seen: set[int] = set()
    waiting = [first]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        yield tensor
        if hasattr(tensor, "graph"):
            waiting.extend(following(tensor))
