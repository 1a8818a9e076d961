"""TPU: a copy of the model on every TPU core."""

from __future__ import annotations

import tensorflow as tf

from tfdist.cluster.tpu import find_tpu
from tfdist.keras_compat.registry import prepare_keras
from tfdist.strategies.own import making_strategy


@making_strategy()
def tpu(name: str | None = None) -> tf.distribute.Strategy:
    """Returns a tf.distribute.TPUStrategy, after connecting to the TPU and initializing it.

    Args:
        name: the name of a Cloud TPU or its grpc:// address; "local" for the TPU of a TPU VM; None looks for a TPU
            (TPU_NAME, Colab, TPU VM).

    Raises:
        RuntimeError: if no TPU is found, with the places that were searched; or if connecting to the TPU fails.

    Example:
        >>> from tfdist.strategies import tpu
        >>> tpu()
        Traceback (most recent call last):
        ...
        RuntimeError: expected a TPU, found none after looking for ...
    """
    found = find_tpu()
    target = name or found.address
    if target is None:
        raise RuntimeError(
            f"expected a TPU, found none after looking for {', '.join(found.looked_for)}; "
            'name a TPU with tpu="NAME" or tpu="grpc://host:port", or use another strategy.'
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
