"""Makes every BatchNormalization layer of a strategy use the moments of the global batch."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

_patched: list[type] = []


def synchronize_batch_normalization(strategy: tf.distribute.Strategy) -> None:
    """Makes the BatchNormalization layers that are built in the scope of a strategy synchronized ones.

    Args:
        strategy: a strategy that tfdist has made. Layers that are built outside of its scope stay as they are.
    """
    strategy._tfdist_sync_batch_norm = True
    kind = tf.keras.layers.BatchNormalization
    if kind in _patched:
        return
    stock = kind.build

    @functools.wraps(stock)
    def build(self: Any, input_shape: Any) -> Any:
        strategy = tf.distribute.get_strategy()
        if getattr(strategy, "_tfdist_sync_batch_norm", False) and strategy.num_replicas_in_sync > 1:
            self.synchronized = True
            if getattr(self, "fused", False) is None:
                # Keras 2 would choose a kernel that knows only the rows of a replica.
                self.fused = False
        return stock(self, input_shape)

    kind.build = build
    _patched.append(kind)
