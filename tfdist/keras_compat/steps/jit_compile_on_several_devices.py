"""Mends Keras 2's `jit_compile=True` on several replicas without GPUs, which fails in the first step.

XLA supports neither variables on several devices nor a sum over replicas on CPUs; TensorFlow compiles the step of each
replica by itself only if all devices are GPUs. TensorFlow's error names neither cause. With the mend `fit` and
`evaluate` raise a ValueError before the first step.

Source: upstream issue keras-team/keras#21366.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import engine_module


def refuse_jit_compile(model: Any) -> None:
    """Raises ValueError if a model on several replicas was compiled with jit_compile=True."""
    if model.jit_compile:
        raise ValueError(
            "expected compile(jit_compile=False) on several replicas, received True; leave jit_compile out, since "
            "TensorFlow cannot compile a step whose variables are on several devices (keras-team/keras#21366)."
        )


def _defect_present() -> bool:
    from tensorflow.python.distribute import mirrored_strategy

    return "_is_gpu_device" in inspect.getsource(mirrored_strategy.MirroredExtended._use_merge_call)


def _can_compile(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether XLA can compile the step of a replica, if there are several replicas."""
    devices = strategy.extended.worker_devices
    return isinstance(strategy, tf.distribute.TPUStrategy) or all("GPU" in device for device in devices)


def _refusing(stock: Callable) -> Callable:
    def make_train_function(self: Any, force: bool = False) -> Any:
        strategy = self.distribute_strategy
        if strategy.num_replicas_in_sync > 1 and not _can_compile(strategy):
            refuse_jit_compile(self)
        return stock(self, force)

    return make_train_function


def _apply() -> None:
    for name in ("make_train_function", "make_test_function"):
        patch_method(engine_module("training").Model, name, _refusing)


MEND = Mend(
    name="jit_compile_on_several_devices",
    issue="keras-team/keras#21366",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`jit_compile=True` fails in the first step, with an error that does not name the cause; tfdist refuses it",
    rows=("jit_compile=True",),
)
