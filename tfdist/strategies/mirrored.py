"""Mirrored: a copy of the model on each local device; gradients are all-reduced between the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.allreduce import AllReduceOptions
from tfdist.keras_compat.registry import apply_mends, prepare_keras
from tfdist.keras_compat.version import keras_in_use
from tfdist.strategies.all_reduce import cross_device_ops, with_all_reduce
from tfdist.strategies.arguments import check_all_reduce
from tfdist.strategies.devices import choose_devices, grow_gpu_memory, has_split_gpus
from tfdist.strategies.own import making_strategy


@making_strategy()
def mirrored(
    *, devices: int | Sequence[str] | None = None, all_reduce: AllReduceOptions | None = None
) -> tf.distribute.Strategy:
    """Returns a tf.distribute.MirroredStrategy over local GPUs, or over logical CPUs if there is no GPU.

    Args:
        devices: None for all GPUs (one CPU if there is no GPU), a number of devices, or their names.
        all_reduce: how the replicas' gradients are summed.

    Raises:
        ValueError: for devices that this machine does not have and options that the strategy cannot honour.
        RuntimeError: if logical CPUs are asked for after TensorFlow has started.

    Example:
        >>> from tfdist.strategies import mirrored
        >>> mirrored(devices=2).num_replicas_in_sync
        2
    """
    check_all_reduce(all_reduce)
    grow_gpu_memory()
    names = choose_devices(devices)
    num_gpus = sum(name.startswith("GPU") for name in names)
    ops = cross_device_ops(all_reduce, num_gpus=num_gpus, is_split=has_split_gpus())
    return prepare_mirrored(lambda: tf.distribute.MirroredStrategy(names, cross_device_ops=ops), all_reduce=all_reduce)


def prepare_mirrored(
    make: Callable[[], tf.distribute.Strategy], *, all_reduce: AllReduceOptions | None
) -> tf.distribute.Strategy:
    """Makes a mirrored strategy and returns it, prepared for Keras.

    Args:
        make: calls the constructor of the strategy.
        all_reduce: the options that the strategy is made with.
    """
    apply_mends("mirrored", keras_in_use(), None)
    return prepare_keras(with_all_reduce(make(), all_reduce), "mirrored")
