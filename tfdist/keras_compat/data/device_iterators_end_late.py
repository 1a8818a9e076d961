"""Mends the end of an epoch on several devices, which may take up to a minute.

Each device reads from its own dataset, which only passes on the batches of another dataset. TensorFlow starts a thread
of tf.data's autotuner for each of these datasets. The thread sleeps for up to 60 s at a time. To end the thread,
`CancellationManager::StartCancel` first calls its callbacks, and only then marks itself as cancelled. If the thread
wakes in between, it sleeps once more, and the end of the epoch waits for the thread. The mend switches the autotuner
off for these datasets, which have nothing to tune, so that no thread is started.

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
    without_row="the numbers are right, only the wait is long",
)
