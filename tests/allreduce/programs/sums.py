"""Sums of two replicas, made by sum_gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import on_each
from tfdist.allreduce import sum_gradients


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    return {"dense": on_each(strategy, _dense), "sparse": on_each(strategy, _sparse)}


def _replica() -> tf.Tensor:
    return tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)


def _dense() -> list[tf.Tensor]:
    one = _replica() + 1.0
    gradients = [
        tf.fill([2], one),
        tf.cast(one, tf.bfloat16),
        None,
        tf.fill([3, 1], 10.0 * one),
        tf.cast(one, tf.float64),
    ]
    sums = sum_gradients(gradients)
    assert sums.pop(2) is None
    return sums


def _sparse() -> tf.Tensor:
    slices = tf.IndexedSlices(
        values=tf.stack([tf.ones([2]), tf.fill([2], 10.0 * (_replica() + 1.0))]),
        indices=tf.stack([tf.constant(0, tf.int64), tf.cast(_replica(), tf.int64) + 1]),
        dense_shape=tf.constant([4, 2], tf.int64),
    )
    total = sum_gradients([slices, _replica()])[0]
    assert isinstance(total, tf.IndexedSlices)
    return tf.convert_to_tensor(total)
