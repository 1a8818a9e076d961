"""Mends Keras 3's random numbers, which are the same on every replica.

A SeedGenerator's state is copied to all replicas, so that each drops the same units for its own rows. Here every
replica but the first adds its number to the seed. Source: SeedGenerator.next in Keras 3; we know of no upstream issue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend

# Odd, and far from the small steps that counters make.
STRIDE = 0x3C6EF35F


def _defect_present() -> bool:
    from keras.src.random import SeedGenerator

    return "replica" not in inspect.getsource(SeedGenerator.next)


def _next(stock: Callable) -> Callable:
    def next_seed(self: Any, ordered: bool = True) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return stock(self, ordered)
        seed = stock(self, ordered)
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64) * STRIDE
        return seed + tf.cast(
            tf.stack([tf.bitwise.bitwise_and(replica, 0x7FFFFFFF), tf.zeros_like(replica)]), seed.dtype
        )

    return next_seed


def _apply() -> None:
    from keras.src.random import SeedGenerator

    SeedGenerator.next = _next(SeedGenerator.next)


MEND = Mend(
    name="replicas_draw_alike",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
