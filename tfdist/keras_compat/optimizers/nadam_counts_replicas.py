"""Mends Keras 2's Nadam, which counts the updates of all replicas together.

Nadam counts in Python how often it has computed the product of its momentum schedule, at each variable whose update it
traces. Under a strategy of several replicas the updates of each replica are counted, so that a replica computes the
product in other steps than one device does. With the mend each replica has its own count.

Source: Nadam.update_step in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    return "self._u_product_counter += 1" in inspect.getsource(tf.keras.optimizers.Nadam.update_step)


def _replica() -> int:
    """Returns the number of the replica whose variables are updated; 0 outside of replicas."""
    updated = distribute_lib.get_update_replica_id()
    if updated is None:
        context = tf.distribute.get_replica_context()
        updated = None if context is None else context._replica_id_in_sync_group
    # On one device it is a tensor.
    return int(tf.get_static_value(updated) or 0)


def _counting_each_replica(stock: Callable) -> Callable:
    def update_step(self: Any, gradient: Any, variable: Any) -> Any:
        replica = _replica()
        counts = self.__dict__.setdefault("_tfdist_counts", {})
        self._u_product_counter = counts.get(replica, 1)
        try:
            return stock(self, gradient, variable)
        finally:
            counts[replica] = self._u_product_counter

    return update_step


def _apply() -> None:
    patch_method(tf.keras.optimizers.Nadam, "update_step", _counting_each_replica)


MEND = Mend(
    name="nadam_counts_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="Nadam has other numbers than on one device, about 1e-6 in a test",
    without_row="the rows have other optimizers; tests/optimizers/test_every_optimizer.py shows it",
)
