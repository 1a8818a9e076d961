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


def captured(placeholder: tf.Tensor) -> tf.Tensor | None:
    """Returns the tensor outside of a function that a placeholder within it stands for; None for an argument.

    Args:
        placeholder: tensor of a graph.
    """
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def outermost(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor that a placeholder stands for, outside of all functions; any other tensor itself.

    Args:
        tensor: tensor of a graph, or an eager one.
    """
    while hasattr(tensor, "graph") and tensor.op.type == "Placeholder":
        outer = captured(tensor)
        if outer is None:
            break
        tensor = outer
    return tensor
