"""Mends Keras 3's random numbers, which are the same on every replica.

The state of a SeedGenerator is copied to all replicas, so that Dropout, for example, drops the same units on each
replica. With the mend every replica except the first adds a multiple of its replica number to the seed.

Source: SeedGenerator.next in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas

# An odd number, far larger than the increments of the state of a SeedGenerator.
STRIDE = 0x3C6EF35F


def _defect_present() -> bool:
    from keras.src.random import SeedGenerator

    return "replica" not in inspect.getsource(SeedGenerator.next)


def _next(stock: Callable) -> Callable:
    def next_seed(self: Any, ordered: bool = True) -> Any:
        seed = stock(self, ordered)
        if not on_several_replicas():
            return seed
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        offset = tf.bitwise.bitwise_and(tf.cast(replica, tf.int64) * STRIDE, 0x7FFFFFFF)
        return seed + tf.cast(tf.stack([offset, tf.zeros_like(offset)]), seed.dtype)

    return next_seed


def _apply() -> None:
    from keras.src.random import SeedGenerator

    SeedGenerator.next = _next(SeedGenerator.next)


MEND = Mend(
    name="replicas_draw_alike",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="random numbers are the same on every replica: Dropout drops the same units",
    rows=("Dropout: replicas draw differently, runs repeat",),
)
