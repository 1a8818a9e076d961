"""Whether the running code belongs to one of several replicas, and whether replicas can wait for each other in it."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf


def on_several_replicas() -> bool:
    """Returns whether the caller is in replica context, under a strategy that has more than one replica.

    The result is False in cross-replica context, in which Keras builds a model.

    Example:
        >>> from tfdist.keras_compat.replicas import on_several_replicas
        >>> on_several_replicas()
        False
    """
    context = tf.distribute.get_replica_context()
    return context is not None and context.num_replicas_in_sync > 1


def may_wait() -> bool:
    """Returns whether replicas can wait for each other here: in the graph of a step, on the thread of a replica.

    They cannot in the graph of a function, a condition or a loop within the step.

    Example:
        >>> from tfdist.keras_compat.replicas import may_wait
        >>> may_wait()
        False
    """
    return _graph_of_step() is tf.compat.v1.get_default_graph()


def is_nested() -> bool:
    """Returns whether this is the thread of a replica, and the graph that of a function, a condition or a loop.

    Example:
        >>> from tfdist.keras_compat.replicas import is_nested
        >>> is_nested()
        False
    """
    return _graph_of_step() not in (None, tf.compat.v1.get_default_graph())


def _graph_of_step() -> Any:
    """Returns the graph of the step, on the thread of a replica; None elsewhere, or without a graph."""
    if tf.executing_eagerly() or tf.distribute.in_cross_replica_context():
        return None
    return getattr(threading.current_thread(), "graph", None)


def is_refused_wait(error: RuntimeError) -> bool:
    """Returns whether TensorFlow has refused that replicas wait for each other, in a graph within that of the step.

    Args:
        error: what TensorFlow has raised.

    Example:
        >>> from tfdist.keras_compat.replicas import is_refused_wait
        >>> is_refused_wait(RuntimeError("`merge_call` called while defining a new graph or a tf.function."))
        True
    """
    return "`merge_call` called" in str(error)


def refuses_waits() -> bool:
    """Returns whether the installed TensorFlow refuses that replicas wait for each other in a graph within a step."""
    from tensorflow.python.distribute import mirrored_run

    return "get_default_graph" in mirrored_run._MirroredReplicaContext._merge_call.__code__.co_names
