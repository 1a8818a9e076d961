"""Mends Keras 3's list of a layer's losses, which all replicas share while a step is traced.

Replicas take turns wherever they meet (a sum over replicas in synchronized batch normalization, a metric on central
storage). One that begins its forward pass clears the list, and one that goes on finds the other's losses in it. Here
each replica has a list of its own. Source: Layer.add_loss in Keras 3's layers/layer.py; we know of no upstream issue.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend

# A replica is traced on a thread of its own; what it has noted goes with the thread.
_local = threading.local()


def _defect_present() -> bool:
    from keras.src.layers import Layer

    return "_losses" in Layer.add_loss.__code__.co_names and "_losses" not in vars(Layer)


def _losses(layer: Any) -> list[Any]:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        if "_losses" not in layer.__dict__:
            raise AttributeError("_losses")
        return layer.__dict__["_losses"]
    if not hasattr(_local, "losses"):
        _local.losses = weakref.WeakKeyDictionary()
    return _local.losses.setdefault(layer, [])


def _set_losses(layer: Any, losses: list[Any]) -> None:
    layer.__dict__["_losses"] = losses


def _apply() -> None:
    from keras.src.layers import Layer

    Layer._losses = property(_losses, _set_losses)


MEND = Mend(
    name="losses_shared_by_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
