"""Reads AllReduceOptions out of the options that a program gives to a constructor of tf.distribute."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.allreduce import AllReduceOptions


def options_of_cross_device_ops(ops: Any) -> AllReduceOptions | None:
    """Returns the options that a CrossDeviceOps stands for; None for TensorFlow's choice and for another class.

    Args:
        ops: the argument `cross_device_ops` of MirroredStrategy.

    Example:
        >>> import tensorflow as tf
        >>> options_of_cross_device_ops(tf.distribute.HierarchicalCopyAllReduce(num_packs=2)).num_packs
        2
    """
    algorithms: dict[type, str] = {
        tf.distribute.NcclAllReduce: "nccl",
        tf.distribute.HierarchicalCopyAllReduce: "hierarchical_copy",
        tf.distribute.ReductionToOneDevice: "reduction_to_one_device",
    }
    algorithm = algorithms.get(type(ops))
    if algorithm is None:
        return None
    # 0 is the program's word for "do not pack".
    return AllReduceOptions(algorithm=algorithm, num_packs=getattr(ops, "_num_packs", None) or None)


def options_of_communication(options: Any) -> AllReduceOptions | None:
    """Returns the options that a CommunicationOptions stands for; None if the program gives none.

    Args:
        options: the argument `communication_options` of MultiWorkerMirroredStrategy.

    Raises:
        ValueError: for another object.

    Example:
        >>> import tensorflow as tf
        >>> options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=60.0)
        >>> options_of_communication(options).timeout_seconds
        60.0
    """
    if options is None:
        return None
    # The constructor of CommunicationOptions makes an object of another class.
    if not isinstance(options, type(tf.distribute.experimental.CommunicationOptions())):
        raise ValueError(f"expected communication_options to be a CommunicationOptions, received {options!r}.")
    names = tf.distribute.experimental.CommunicationImplementation
    return AllReduceOptions(
        algorithm={names.RING: "ring", names.NCCL: "nccl"}.get(options.implementation, "auto"),
        bytes_per_pack=options.bytes_per_pack or None,
        timeout_seconds=options.timeout_seconds,
    )
