"""Sums of slices whose rows do or do not depend on the batch of two replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import on_each
from tfdist.allreduce import Streams, sum_gradients

BATCH = [4, 0, 4]


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    batch = tf.Variable([float(row) for row in BATCH])
    rows = {
        "positions": lambda: tf.range(tf.shape(batch)[0]),
        "a constant": lambda: tf.constant(BATCH),
        "words": lambda: tf.cast(tf.convert_to_tensor(batch), tf.int32),
        "rows of the replica": lambda: tf.range(3) + _replica(),
        "other numbers of rows": lambda: tf.range(2 + _replica()),
        "no rows on the first replica": lambda: tf.range(_replica()),
    }
    sums = {"sum_gradients": lambda slices: sum_gradients([slices])[0], "streams": _streams}
    return {
        f"{title}, {name}": on_each(strategy, functools.partial(_summed, make, total))
        for title, total in sums.items()
        for name, make in rows.items()
    }


def _replica() -> int:
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def _streams(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    return Streams().all_reduce_slices(slices)


def _summed(make: Callable[[], tf.Tensor], total: Callable[[tf.IndexedSlices], tf.IndexedSlices]) -> list[tf.Tensor]:
    """Returns the sum of the slices of all replicas as a dense tensor, and the sum of their squares.

    The value of slice i on replica r is i + 1 + 10 r.
    """
    indices = make()
    values = tf.cast(tf.range(1, tf.size(indices) + 1) + 10 * _replica(), tf.float32)[:, None]
    summed = total(tf.IndexedSlices(values, indices, tf.constant([5, 1])))
    return [tf.convert_to_tensor(summed)[:, 0], tf.reduce_sum(tf.square(summed.values))]
