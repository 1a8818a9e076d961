"""OneDevice: everything on one device; the reference that every other strategy is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.keras_compat.registry import prepare_keras
from tfdist.strategies.devices import choose_devices, grow_gpu_memory
from tfdist.strategies.own import making_strategy


@making_strategy()
def one_device(*, devices: int | Sequence[str] | None = None) -> tf.distribute.Strategy:
    """Returns a tf.distribute.OneDeviceStrategy on the first GPU, or on the CPU if there is no GPU.

    Args:
        devices: one device name in a list, such as ["CPU:0"], or None to choose.

    Raises:
        ValueError: for more than one device, or for a device that this machine does not have.

    Example:
        >>> from tfdist.strategies import one_device
        >>> one_device(devices=["CPU:0"]).num_replicas_in_sync
        1
    """
    grow_gpu_memory()
    names = choose_devices(devices)
    if devices is not None and len(names) != 1:
        raise ValueError(
            f"expected one device for the strategy one_device, received {len(names)}; use 'mirrored' for several."
        )
    return prepare_keras(tf.distribute.OneDeviceStrategy(f"/{names[0].lower()}"), "one_device")
