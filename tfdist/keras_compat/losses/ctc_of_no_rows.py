"""Mends the CTC loss on a replica that has no rows, which fails in TensorFlow.

The operations of TensorFlow refuse a batch without rows. A replica has no rows if the last batch has fewer rows than
there are replicas. With the mend such a replica computes the loss of one row of ones and removes this loss.

Source: `ctc_loss` in Keras 3's backend/tensorflow/nn.py, `ctc_batch_cost` in Keras 2's backend.py. No upstream issue is
known.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas
from tfdist.keras_compat.version import keras_in_use


def _function() -> tuple[Any, str]:
    """Returns the module and the name of the function that computes the losses of rows."""
    if not keras_in_use().is_keras3:
        return tf.keras.backend, "ctc_batch_cost"
    from keras.src import backend

    return backend.nn, "ctc_loss"


def _defect_present() -> bool:
    module, name = _function()
    column = [0, 1] if name == "ctc_batch_cost" else [0]
    try:
        getattr(module, name)(
            tf.zeros([0, 1], tf.int32), tf.zeros([0, 2, 3]), tf.zeros(column, tf.int32), tf.zeros(column, tf.int32)
        )
    except tf.errors.InvalidArgumentError:
        return True
    return False


def _with_a_row(stock: Callable) -> Callable:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def losses(*args: Any, **kwargs: Any) -> Any:
        if not on_several_replicas():
            return stock(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        # Labels, outputs and their lengths have a row for each row of the batch.
        tensors = {name: tf.convert_to_tensor(value) for name, value in list(arguments.items())[:4]}
        rows = tf.shape(next(iter(tensors.values())))[0]
        padded = {name: _with_a_row_of_ones(tensor, rows > 0) for name, tensor in tensors.items()}
        return stock(**{**arguments, **padded})[:rows]

    return losses


def _with_a_row_of_ones(values: tf.Tensor, has_rows: tf.Tensor) -> tf.Tensor:
    def one_row() -> tf.Tensor:
        return tf.ones(tf.concat([[1], tf.shape(values)[1:]], 0), values.dtype)

    found = tf.cond(has_rows, lambda: tf.identity(values), one_row)
    found.set_shape([None, *values.shape[1:]])
    return found


def _apply() -> None:
    module, name = _function()
    setattr(module, name, _with_a_row(getattr(module, name)))


MEND = Mend(
    name="ctc_of_no_rows",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="the CTC loss fails on a replica without rows",
    rows=("CTC loss, compiled", "CTC loss in an endpoint layer"),
)
