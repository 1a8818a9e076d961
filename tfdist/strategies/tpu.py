"""TPU: a copy of the model on every TPU core."""

from __future__ import annotations

import tensorflow as tf

from tfdist.cluster.tpu import find_tpu
from tfdist.keras_compat.registry import prepare_keras


def tpu(name: str | None = None) -> tf.distribute.Strategy:
    """Returns a tf.distribute.TPUStrategy, after connecting to the TPU and initializing it.

    Args:
        name: None looks for one (TPU VM, Colab, TPU_NAME); "local" is that of a TPU VM; else the name of a Cloud TPU or
            its grpc:// address.

    Raises:
        RuntimeError: if there is none; the message names the places that were searched.

    Example:
        >>> from tfdist.strategies import tpu
        >>> tpu()
        Traceback (most recent call last):
        ...
        RuntimeError: expected a TPU, found none; looked for ...
    """
    found = find_tpu()
    target = name or found.address
    if target is None:
        raise RuntimeError(
            f"expected a TPU, found none; looked for {'; '.join(found.looked_for)}. "
            'Name one with tpu="NAME" or tpu="grpc://host:port", or use another strategy.'
        )
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=target)
        if target != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:
        how = "as named" if name else found.source
        raise RuntimeError(
            f"expected to reach the TPU {target!r} ({how}), but connecting failed: {type(error).__name__}: {error}; "
            "check the name and that this machine may reach it."
        ) from error
    return prepare_keras(tf.distribute.TPUStrategy(resolver), "tpu")
