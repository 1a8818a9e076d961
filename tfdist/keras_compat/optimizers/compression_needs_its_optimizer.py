"""Mends compile, which ignores the compression that a strategy was made with.

Only DistributedOptimizer compresses gradients. With any other optimizer TensorFlow would silently send uncompressed
gradients. With the mend, `compile` turns the optimizer into a DistributedOptimizer if the model's strategy was made
with compression. A custom training loop with another optimizer raises an error at its first step. In Keras 3 this check
is part of the mend gradients_used_before_the_sum, in Keras 2 of this mend.

Source: compression is an option of tfdist, so that there is no upstream issue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.hook import GradientHook
from tfdist.allreduce.options_of import all_reduce_of, refuse_lost_compression
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.optimizers.attach import attach
from tfdist.keras_compat.optimizers.hooked import hook_of
from tfdist.keras_compat.version import keras_in_use, trainer_class


def _defect_present() -> bool:
    return "compression" not in inspect.getsource(trainer_class().compile)


def _compresses(strategy: tf.distribute.Strategy) -> bool:
    return all_reduce_of(strategy).compressor is not None


def _apply() -> None:
    # In Keras 3 a base class has `compile`; a model whose class has another one is not compiled when it is loaded.
    owner = next(one for one in trainer_class().__mro__ if "compile" in vars(one))
    patch_method(owner, "compile", _wrapping_the_optimizer)
    if not keras_in_use().is_keras3:
        patch_method(tf.keras.optimizers.Optimizer, "aggregate_gradients", _refusing_lost_compression)
        patch_method(tf.keras.optimizers.legacy.Optimizer, "_aggregate_gradients", _refusing_lost_compression)


def _wrapping_the_optimizer(stock: Callable) -> Callable:
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        strategy = self.distribute_strategy
        for optimizer in tf.nest.flatten(getattr(self, "optimizer", None)):
            if optimizer is not None and _compresses(strategy) and hook_of(optimizer) is None:
                attach(optimizer, GradientHook(None, 1))
                get_logger().info(
                    "compile: the gradients of %s are compressed with %s, the compression of the strategy",
                    type(optimizer).__name__,
                    all_reduce_of(strategy).compressor,
                )
        return result

    return compile


def _refusing_lost_compression(stock: Callable) -> Callable:
    def aggregate(self: Any, grads_and_vars: Any) -> Any:
        # Only other optimizers call this method: DistributedOptimizer replaces it.
        refuse_lost_compression(tf.distribute.get_strategy(), type(self).__name__)
        return stock(self, grads_and_vars)

    return aggregate


MEND = Mend(
    name="compression_needs_its_optimizer",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`compile` ignores the compression that a strategy was made with: gradients are sent uncompressed",
    without_row="stock Keras has no compression",
    needed_by=_compresses,
)
