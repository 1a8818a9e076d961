"""Mends the losses of activity regularizers in Keras 3.8 to 3.13, which are divided by the number of replicas.

An activity regularizer of these releases adds up the rows of a batch; later releases divide by the number of rows.
Stock Keras divides the loss of every layer by the number of replicas, as if it were a mean over rows, so that N
replicas train with 1 / N of the penalty of one device. With the mend the losses of all replicas are added up.

Source: Layer.__call__ in Keras 3's layers/layer.py. The documentation of Regularizer says that the value is divided by
the number of rows; Keras 3.14 and later do so. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from typing import Any

from tfdist.keras_compat.losses.global_batch import current_batch
from tfdist.keras_compat.losses.loss_divided_by_replicas import global_sum
from tfdist.keras_compat.mend import Mend

_NAME = "activity_regularizer"


def _defect_present() -> bool:
    from keras.src.layers import Layer

    return "divide_no_nan" not in inspect.getsource(Layer.__call__)


def _regularizer(layer: Any) -> Any:
    if _NAME not in layer.__dict__:
        raise AttributeError(_NAME)
    regularizer, batch = layer.__dict__[_NAME], current_batch()
    if regularizer is None or batch is None:
        return regularizer
    return lambda output: global_sum(regularizer(output), batch)


def _set_regularizer(layer: Any, regularizer: Any) -> None:
    layer.__dict__[_NAME] = regularizer


def _apply() -> None:
    from keras.src.layers import Layer

    Layer.activity_regularizer = property(_regularizer, _set_regularizer)


MEND = Mend(
    name="activity_regularizers_add_rows",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 13)),
    defect_present=_defect_present,
    apply=_apply,
    defect="the losses of activity regularizers, which are sums over rows, are divided by the number of replicas",
    rows=("regularizers counted once", "smaller last batch, regularizers and several outputs"),
)
