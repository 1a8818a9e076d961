"""Mends convolutions on a replica that has no rows, on a CPU.

The kernels of oneDNN return the shape of the input for a batch without rows, not that of the output: the next layer
fails, or a sum over replicas does. A replica has no rows where the last batch has fewer than there are replicas. Here
such a replica convolves one row of zeros, and leaves it out of the outputs.
Source: MklConvOp in TensorFlow 2.15 and 2.21 with TF_ENABLE_ONEDNN_OPTS, the default; we know of no upstream issue.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend

_LAYERS = tuple(
    f"{kind}{rank}D{transposed}"
    for kind, transposed, ranks in (
        ("Conv", "", (1, 2, 3)),
        ("Conv", "Transpose", (1, 2, 3)),
        ("DepthwiseConv", "", (1, 2)),
        ("SeparableConv", "", (1, 2)),
    )
    for rank in ranks
)
# A layer's call may be that of its base.
_inside = threading.local()


def _defect_present() -> bool:
    # Without knowing the rows: known ones are folded into constants.
    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 1])])
    def channels(rows: tf.Tensor) -> tf.Tensor:
        return tf.shape(tf.nn.conv2d(rows, tf.ones([2, 2, 1, 2]), 1, "VALID"))[-1]

    with tf.device("CPU:0"):
        return int(channels(tf.zeros([0, 2, 2, 1]))) != 2


def _may_be_empty(inputs: Any) -> bool:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1 or not tf.is_tensor(inputs):
        return False
    return not inputs.shape[:1].num_elements() and "CPU" in context.strategy.extended.worker_devices[0]


def _with_a_row(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def call(self: Any, inputs: Any) -> Any:
        if getattr(_inside, "a_call", False) or not _may_be_empty(inputs):
            return stock(self, inputs)
        some = tf.shape(inputs)[0] > 0

        def one_row() -> tf.Tensor:
            # Not tf.pad, which is put into the kernel of the convolution.
            zeros = tf.zeros(tf.concat([[1], tf.shape(inputs)[1:]], 0), inputs.dtype)
            return tf.concat([inputs, zeros], 0)

        # The conditions hold no convolution: where there are rows, nothing is copied.
        rows = tf.cond(some, lambda: tf.identity(inputs), one_row)
        rows.set_shape([None, *inputs.shape[1:]])
        _inside.a_call = True
        try:
            outputs = stock(self, rows)
        finally:
            _inside.a_call = False
        found = tf.cond(some, lambda: tf.identity(outputs), lambda: outputs[:0])
        found.set_shape([None, *outputs.shape[1:]])
        return found

    return call


def _apply() -> None:
    layers = [getattr(tf.keras.layers, name) for name in _LAYERS]
    written = {one for layer in layers for one in layer.__mro__ if ".convolutional." in one.__module__}
    for one in written:
        if "call" in vars(one):
            one.call = _with_a_row(one.call)


MEND = Mend(
    name="convolution_of_no_rows",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
