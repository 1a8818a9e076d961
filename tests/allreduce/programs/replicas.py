"""Values that programs and tests share, and the functions that run a step on each replica."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

REPLICAS = 2


def value(*key: int, shape: tuple[int, ...] = (), dtype: str = "float32") -> np.ndarray:
    """Returns the array of a key, such as (replica, place): whole numbers, so that sums are exact in any dtype."""
    return np.asarray(np.random.default_rng(key).integers(-50, 50, size=shape)).astype(dtype)


def normal(*key: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the array of a key: normally distributed float32."""
    return np.random.default_rng(key).normal(size=shape).astype("float32")


def own(make: Callable[[int], np.ndarray]) -> tf.Tensor:
    """Returns this replica's array; called in replica context.

    Args:
        make: takes the number of a replica.
    """
    number = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.constant(np.stack([make(replica) for replica in range(REPLICAS)]))[number]


def on_each(strategy: tf.distribute.Strategy, step: Callable[[], Any]) -> list[Any]:
    """Returns what a step returns on each replica of this process, its tensors as lists."""
    found = tf.function(lambda: strategy.run(step), autograph=False).get_concrete_function()()
    replicas = range(len(strategy.extended.worker_devices))
    return [tf.nest.map_structure(functools.partial(_local, strategy, i), found) for i in replicas]


def _local(strategy: tf.distribute.Strategy, replica: int, values: Any) -> Any:
    return np.asarray(tf.cast(strategy.experimental_local_results(values)[replica], tf.float64)).tolist()
