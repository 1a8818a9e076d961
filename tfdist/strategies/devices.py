"""The local devices that a strategy trains on: GPUs with memory growth, or logical CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.strategies.arguments import read_devices
from tfdist.strategies.first_touch import explain_late_start


def grow_gpu_memory() -> None:
    """Lets every GPU take memory as it is needed; call this function before TensorFlow starts.

    A GPU that the program has split into logical ones keeps their sizes: TensorFlow refuses to let it grow.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        if tf.config.get_logical_device_configuration(gpu):
            continue
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError as error:
            get_logger().warning("GPU memory growth is not changed: %s", explain_late_start(error))


def count_gpus() -> int:
    """Returns the number of GPUs that this program can train on, without starting TensorFlow.

    A GPU that the program has split with tf.config.set_logical_device_configuration counts as several.
    """
    gpus = tf.config.list_physical_devices("GPU")
    return sum(len(tf.config.get_logical_device_configuration(gpu) or [gpu]) for gpu in gpus)


def has_split_gpus() -> bool:
    """Returns whether the program has split a GPU into logical ones, without starting TensorFlow."""
    return count_gpus() > len(tf.config.list_physical_devices("GPU"))


def choose_devices(devices: int | Sequence[str] | None) -> list[str]:
    """Returns the names of the local devices to train on, and makes logical CPUs if they are asked for.

    Args:
        devices: None for all GPUs, or one CPU if there is no GPU; a number of GPUs, or of logical CPUs if there is no
            GPU; or names such as ["GPU:0", "GPU:1"] or ["CPU:0", "CPU:1"].

    Returns:
        Device names such as ["CPU:0", "CPU:1"].

    Raises:
        ValueError: for devices that this machine does not have.
        RuntimeError: if logical CPUs are asked for after TensorFlow has started.
    """
    asked, gpus = read_devices(devices), count_gpus()
    if asked is None:
        return [f"GPU:{i}" for i in range(gpus)] or ["CPU:0"]
    if isinstance(asked, int):
        if gpus and asked > gpus:
            raise ValueError(
                f"expected at most {gpus} devices, as many as there are GPUs, received {asked}; ask for fewer, "
                'or name CPUs: devices=["CPU:0", "CPU:1"].'
            )
        names = [f"{'GPU' if gpus else 'CPU'}:{i}" for i in range(asked)]
    else:
        names = asked
    wrong = [name for name in names if name.startswith("GPU") and int(name[4:]) >= gpus]
    if wrong:
        raise ValueError(f"expected devices of this machine, which has {gpus} GPUs, received {', '.join(wrong)}.")
    cpus = [int(name[4:]) for name in names if name.startswith("CPU")]
    if cpus:
        _make_logical_cpus(max(cpus) + 1)
    return names


def _make_logical_cpus(count: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu)
    if len(configured or [None]) >= count:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        raise RuntimeError(
            f"expected to make {count} logical CPU devices before TensorFlow starts, but it has started: "
            f"{explain_late_start(error)}"
        ) from error
