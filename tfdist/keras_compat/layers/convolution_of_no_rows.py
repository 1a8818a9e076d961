"""Mends convolutions on a replica that has no rows, on a CPU.

For a batch without rows, the kernels of oneDNN return a tensor with the shape of the input instead of the shape of the
output; the next layer, or a sum over replicas, then fails. A replica has no rows if the last batch has fewer rows than
there are replicas. With the mend such a replica convolves one row of zeros and removes that row from the outputs.

Source: MklConvOp in TensorFlow 2.15 and 2.21 with TF_ENABLE_ONEDNN_OPTS=1, which is the default on CPUs that have the
instructions of AVX512 VNNI or AMX. No upstream issue is known.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas

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
# Set while a mended `call` runs: this `call` may call the `call` of the base class, which is mended too.
_inside = threading.local()


def _defect_present() -> bool:
    # The number of rows is not static in the graph: otherwise TensorFlow folds the shape into a constant.
    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2, 1])])
    def channels(rows: tf.Tensor) -> tf.Tensor:
        return tf.shape(tf.nn.conv2d(rows, tf.ones([2, 2, 1, 2]), 1, "VALID"))[-1]

    with tf.device("CPU:0"):
        return int(channels(tf.zeros([0, 2, 2, 1]))) != 2


def _may_be_empty(inputs: Any) -> bool:
    if not on_several_replicas() or not tf.is_tensor(inputs):
        return False
    on_cpu = "CPU" in tf.distribute.get_strategy().extended.worker_devices[0]
    return on_cpu and not inputs.shape[:1].num_elements()


def _with_a_row(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def call(self: Any, inputs: Any) -> Any:
        if getattr(_inside, "a_call", False) or not _may_be_empty(inputs):
            return stock(self, inputs)
        has_rows = tf.shape(inputs)[0] > 0

        def one_row() -> tf.Tensor:
            # Not tf.pad, which TensorFlow would fuse into the kernel of the convolution.
            zeros = tf.zeros(tf.concat([[1], tf.shape(inputs)[1:]], 0), inputs.dtype)
            return tf.concat([inputs, zeros], 0)

        # The convolution is outside of tf.cond, so that a replica with rows copies nothing.
        rows = tf.cond(has_rows, lambda: tf.identity(inputs), one_row)
        rows.set_shape([None, *inputs.shape[1:]])
        _inside.a_call = True
        try:
            outputs = stock(self, rows)
        finally:
            _inside.a_call = False

        def without_the_row(values: tf.Tensor) -> tf.Tensor:
            found = tf.cond(has_rows, lambda: tf.identity(values), lambda: values[:0])
            found.set_shape([None, *values.shape[1:]])
            return found

        found = without_the_row(outputs)
        # From a sigmoid or softmax, Keras's crossentropies take the logits, which are more accurate.
        if hasattr(outputs, "_keras_logits"):
            found._keras_logits = without_the_row(outputs._keras_logits)
        return found

    return call


def _apply() -> None:
    layers = [getattr(tf.keras.layers, name) for name in _LAYERS]
    classes = {base for layer in layers for base in layer.__mro__ if ".convolutional." in base.__module__}
    for layer_class in classes:
        if "call" in vars(layer_class):
            layer_class.call = _with_a_row(layer_class.call)


MEND = Mend(
    name="convolution_of_no_rows",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="on a CPU with oneDNN, a convolution on a replica without rows returns a tensor of the shape of its input: "
    "the next layer, or a sum over replicas, fails",
    rows=("convolutions, last batch of 1 row: replicas that get none",),
)
