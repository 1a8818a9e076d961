"""on_several_replicas: whether the running code belongs to one of several replicas."""

from __future__ import annotations

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
