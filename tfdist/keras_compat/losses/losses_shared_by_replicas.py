"""Mends Keras 3's list of a layer's losses, which all replicas share while a step is traced.

TensorFlow traces one replica up to a point at which replicas communicate (a sum over replicas in synchronized batch
normalization, a metric on central storage), then the next replica up to the same point. The forward pass of each
replica first clears the list of losses. When the first replica continues, the list therefore holds the losses of
another replica. The mend gives each replica its own list.

Source: Layer.add_loss in Keras 3's layers/layer.py. No upstream issue is known.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas

# Each replica is traced on its own thread. The lists of a replica are deleted when that thread ends.
_local = threading.local()


def _defect_present() -> bool:
    from keras.src.layers import Layer

    return "_losses" in Layer.add_loss.__code__.co_names and "_losses" not in vars(Layer)


def _losses(layer: Any) -> list[Any]:
    if not on_several_replicas():
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
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="replicas share the list of `add_loss` losses while a step is traced: a replica trains on the losses of "
    "another replica",
    rows=("add_loss beside synchronized BatchNormalization",),
)
