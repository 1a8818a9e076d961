"""Mends the end of an epoch on several devices, which may take up to a minute.

Each device reads through a dataset of its own that only passes on batches made by another dataset, and TensorFlow
starts a thread of tf.data's autotuner for each of these datasets. Such a thread sleeps for up to 60 s at a time. It
misses the call that ends it if it wakes before that call is over, because `CancellationManager::StartCancel` marks
itself cancelled only after it has called back; the end of the epoch then waits for the thread to wake again. The mend
switches the autotuner off for these datasets, in which there is nothing to tune, so that there is no thread to wait
for.

Source: `_create_device_dataset` in TensorFlow's multi_device_iterator_ops.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend


def _defect_present() -> bool:
    from tensorflow.python.data.ops import multi_device_iterator_ops

    return "autotune" not in inspect.getsource(multi_device_iterator_ops._create_device_dataset)


def _apply() -> None:
    from tensorflow.python.data.ops import multi_device_iterator_ops

    stock = multi_device_iterator_ops._create_device_dataset

    def create_device_dataset(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        return stock(*args, **kwargs).with_options(options)

    multi_device_iterator_ops._create_device_dataset = create_device_dataset


MEND = Mend(
    name="device_iterators_end_late",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="the end of an epoch may wait up to a minute for tf.data's autotuner",
    rows=(),
)
