"""Mends the end of an epoch on several devices, which may wait for a minute until tf.data's tuner looks up.

Each device reads through a dataset of its own that only hands on what another one has made, and TensorFlow starts a
thread to tune each. Such a thread sleeps between looks for up to 60 s, and misses the call that ends it where it wakes
before the call is over (`CancellationManager::StartCancel` marks itself cancelled after it has called back). There is
nothing to tune in these datasets; without the thread nothing waits for it. Source: `_create_device_dataset` in
TensorFlow's multi_device_iterator_ops.py; we know of no upstream issue.
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
)
