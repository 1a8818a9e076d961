"""Mends gathers over workers of tensors without entries, at which TensorFlow's process crashes (SIGSEGV).

The gradient of an embedding is such a tensor if no row of the global batch has an id. With the mend, a tensor without
entries is sent with one, which is left out afterwards.

Source: CollectiveGatherV2 in TensorFlow. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

    # To gather nothing would end this process.
    return "all_gather_v2" in CollectiveReplicaLauncher._all_gather.__code__.co_names


def _with_an_entry(stock: Callable) -> Callable:
    def _all_gather(self: Any, input_tensor: Any, options: Any) -> tf.Tensor:
        value = tf.convert_to_tensor(input_tensor)
        if value.shape.num_elements():
            return stock(self, input_tensor, options)
        entries = tf.reshape(value, [-1])
        # Neither the padding nor the slice copies anything where there are entries.
        padded = tf.pad(entries, [[0, tf.cast(tf.equal(tf.size(entries), 0), tf.int32)]])
        gathered = stock(self, padded, options)[: self._group_size * tf.size(entries)]
        rows = None if value.shape.rank is None or value.shape[0] is None else value.shape[0] * self._group_size
        shape = tf.concat([[self._group_size * tf.shape(value)[0]], tf.shape(value)[1:]], 0)
        return tf.ensure_shape(tf.reshape(gathered, shape), [rows, *value.shape[1:]] if value.shape.rank else None)

    return _all_gather


def _apply() -> None:
    from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

    patch_method(CollectiveReplicaLauncher, "_all_gather", _with_an_entry)


MEND = Mend(
    name="gathers_crash_without_entries",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="workers crash if they gather a tensor without entries, such as the gradient of an embedding without ids",
    without_row="the embeddings of all cells have ids",
)
