"""CentralStorage: variables on one device, computation on every local device."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_compat.registry import prepare_keras
from tfdist.strategies.devices import choose_devices, grow_gpu_memory
from tfdist.strategies.own import making_strategy


@making_strategy()
def central_storage(*, devices: int | Sequence[str] | None = None) -> tf.distribute.Strategy:
    """Returns a tf.distribute.experimental.CentralStorageStrategy with its variables on the CPU.

    Args:
        devices: the devices that compute: None for all GPUs (one CPU if there is no GPU), a number, or names.

    Raises:
        ValueError: for devices that this machine does not have.
        RuntimeError: if logical CPUs are asked for after TensorFlow has started.

    Example:
        >>> from tfdist.strategies import central_storage
        >>> central_storage(devices=2).num_replicas_in_sync
        2
    """
    grow_gpu_memory()
    names = choose_devices(devices)
    strategy = tf.distribute.experimental.CentralStorageStrategy(compute_devices=names, parameter_device="CPU:0")
    return prepare_keras(strategy, "central_storage")
