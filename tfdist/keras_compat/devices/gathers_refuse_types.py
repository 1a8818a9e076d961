"""Mends gathers over workers, which TensorFlow knows for float16, float32, float64, int32 and int64 alone.

`predict` of several workers, `strategy.gather` and `all_gather` fail for all other types: bfloat16 (the outputs of a
model with mixed precision), bool, text, complex and the other integers. With the mend such a tensor is sent as a type
that can be gathered, and is the same afterwards, bit for bit. Texts are sent as bytes, all as long as the longest one.

Source: CollectiveGatherV2 in TensorFlow. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method

_SENT_AS = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.int16: tf.int32,
    tf.uint8: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_SENT_AS_BITS = {tf.uint64: tf.int64, tf.complex64: tf.float32, tf.complex128: tf.float64}
_BYTES_OF_A_NUMBER = 4


def _defect_present() -> bool:
    from tensorflow.python.framework import op_def_registry

    gather = op_def_registry.get("CollectiveGatherV2")
    known = {tf.as_dtype(number) for a in gather.attr if a.name == "T" for number in a.allowed_values.list.type}
    return not known.issuperset({*_SENT_AS, *_SENT_AS_BITS, tf.string})


def _of_every_type(stock: Callable) -> Callable:
    def _all_gather(self: Any, input_tensor: Any, options: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(input_tensor)
        dtype = value.dtype
        if dtype in _SENT_AS:
            return tf.cast(self._all_gather(tf.cast(value, _SENT_AS[dtype]), options), dtype)
        if dtype in _SENT_AS_BITS:
            return tf.bitcast(self._all_gather(tf.bitcast(value, _SENT_AS_BITS[dtype]), options), dtype)
        if dtype == tf.string:
            return _texts(value, lambda tensor: self._all_gather(tensor, options))
        return stock(self, input_tensor, options)

    return _all_gather


def _texts(value: tf.Tensor, gather: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns the texts of all replicas.

    Args:
        value: the texts of this replica.
        gather: gathers numbers along the first axis.
    """
    lengths = gather(tf.strings.length(value))
    # Four bytes are sent as one int32. There is at least one, also without any text.
    longest = tf.reduce_max(tf.concat([[1], tf.reshape(lengths, [-1])], 0))
    size = (longest + _BYTES_OF_A_NUMBER - 1) // _BYTES_OF_A_NUMBER * _BYTES_OF_A_NUMBER
    numbers = gather(tf.io.decode_raw(value, tf.int32, fixed_length=size))
    codes = tf.reshape(tf.bitcast(numbers, tf.uint8), tf.concat([tf.shape(lengths), [size]], 0))
    characters = tf.gather(tf.constant([bytes([code]) for code in range(256)]), tf.cast(codes, tf.int32))
    texts = tf.strings.reduce_join(tf.where(tf.sequence_mask(lengths, size), characters, ""), -1)
    return tf.ensure_shape(texts, lengths.shape)


def _apply() -> None:
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

    patch_method(CollectiveReplicaLauncher, "_all_gather", _of_every_type)


MEND = Mend(
    name="gathers_refuse_types",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`predict` of several workers and `strategy.gather` fail for bfloat16, bool, text, complex and small ints",
    without_row="all outputs of the cells are of a type that TensorFlow gathers",
)
