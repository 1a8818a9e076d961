"""Refuses to train Keras 2's models without compression where the strategy was asked for it.

Compression is done by DistributedOptimizer. With another optimizer TensorFlow would send gradients as they are, and
nobody would know. Of Keras 3 the mend gradients_used_before_the_sum refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce.options_of import refuse_lost_compression
from tfdist.keras_compat.version import keras_in_use


def require_distributed_optimizer() -> None:
    """Makes every optimizer of Keras 2 look whether its strategy was asked for compression; once is enough."""
    if keras_in_use().is_keras3:
        return
    optimizers = tf.keras.optimizers
    for base, name in (
        (optimizers.Optimizer, "aggregate_gradients"),
        (optimizers.legacy.Optimizer, "_aggregate_gradients"),
    ):
        stock = getattr(base, name)
        if not getattr(stock, "_tfdist_refuses", False):
            setattr(base, name, _refusing(stock))


def _refusing(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def refusing(self: Any, grads_and_vars: Any) -> Any:
        # A DistributedOptimizer has a method of its own.
        refuse_lost_compression(tf.distribute.get_strategy(), type(self).__name__)
        return stock(self, grads_and_vars)

    refusing._tfdist_refuses = True  # type: ignore[attr-defined]
    return refusing
