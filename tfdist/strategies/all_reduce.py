"""Converts AllReduceOptions to the objects of TensorFlow's strategies, and refuses options that they cannot honour."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.deadline import SumDeadline
from tfdist.allreduce.native.library import NOT_INSTALLED
from tfdist.allreduce.options import DEFAULT_TIMEOUT_SECONDS
from tfdist.allreduce.options_of import remember_all_reduce
from tfdist.allreduce.streams import warn_unless_streams
from tfdist.strategies.transport import choose_transport, may_be_native

_WITHIN_A_PROCESS = ("hierarchical_copy", "reduction_to_one_device")


def cross_device_ops(options: AllReduceOptions | None, *, num_gpus: int, is_split: bool = False) -> Any:
    """Returns the tf.distribute.CrossDeviceOps of a mirrored strategy, or None for TensorFlow's own choice.

    Args:
        options: the options that the user asked for, or None.
        num_gpus: how many of the strategy's devices are GPUs.
        is_split: whether the program has split a GPU into logical ones.

    Raises:
        ValueError: for an option that a mirrored strategy cannot honour.
    """
    if options is None:
        return None
    _refuse(
        "mirrored", options, ("bytes_per_pack", "timeout_seconds"), "only a reduction across workers uses this option"
    )
    if options.transport == "native" and (num_gpus or options.algorithm != "auto"):
        raise ValueError(
            "expected several CPUs and all_reduce.algorithm='auto' for all_reduce.transport='native' of the strategy "
            f"mirrored, received {num_gpus} GPUs and {options.algorithm!r}; leave the transport or the algorithm out."
        )
    packs = {} if options.num_packs is None else {"num_packs": options.num_packs}
    if options.algorithm == "nccl":
        if not num_gpus:
            raise ValueError(
                "expected GPUs for all_reduce.algorithm='nccl', received a mirrored strategy on CPUs; "
                "use 'auto', 'hierarchical_copy' or 'reduction_to_one_device'."
            )
        _refuse_nccl_on_parts(is_split)
        return tf.distribute.NcclAllReduce(**packs)
    if options.algorithm == "hierarchical_copy":
        return tf.distribute.HierarchicalCopyAllReduce(**packs)
    _refuse("mirrored", options, ("num_packs",), f"the algorithm {options.algorithm!r} does not pack")
    if options.algorithm == "ring":
        raise ValueError(
            "expected an all_reduce.algorithm of a mirrored strategy (auto, nccl, hierarchical_copy, "
            "reduction_to_one_device), received 'ring', which works across workers; use it with multi_worker_mirrored."
        )
    return tf.distribute.ReductionToOneDevice() if options.algorithm == "reduction_to_one_device" else None


def communication_options(
    options: AllReduceOptions | None, *, num_gpus: int, is_split: bool = False
) -> tf.distribute.experimental.CommunicationOptions:
    """Returns the CommunicationOptions of a multi-worker mirrored strategy.

    Args:
        options: the options that the user asked for, or None.
        num_gpus: how many GPUs this process has.
        is_split: whether the program has split a GPU into logical ones.

    The result has no timeout, since TensorFlow would start a sleeping thread for every collective. SumDeadline applies
    the timeout instead.

    Raises:
        ValueError: for an option that cannot be honoured across workers.
    """
    options = options or AllReduceOptions()
    _refuse("multi_worker_mirrored", options, ("num_packs",), "across workers, bytes_per_pack sets the packs")
    if options.algorithm in _WITHIN_A_PROCESS:
        raise ValueError(
            "expected an all_reduce.algorithm that works across workers (auto, ring, nccl), received "
            f"{options.algorithm!r}, which reduces within one process; use it with the mirrored strategy."
        )
    if options.algorithm == "nccl" and not num_gpus:
        raise ValueError(
            "expected GPUs for all_reduce.algorithm='nccl', received a worker without GPUs; use 'auto' or 'ring'."
        )
    if options.algorithm == "nccl":
        _refuse_nccl_on_parts(is_split)
    if options.transport == "native" and options.algorithm != "auto":
        raise ValueError(
            "expected all_reduce.algorithm='auto' for all_reduce.transport='native', which has an algorithm of its "
            f"own, received {options.algorithm!r}; leave the algorithm or the transport out."
        )
    implementation = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack or 0,
        implementation={"nccl": implementation.NCCL, "ring": implementation.RING}.get(
            options.algorithm, implementation.AUTO
        ),
    )


def with_all_reduce(
    strategy: tf.distribute.Strategy,
    options: AllReduceOptions | None,
    *,
    num_workers: int = 1,
    timeout_seconds: float = 300.0,
) -> tf.distribute.Strategy:
    """Stores the options on a strategy, and returns the strategy.

    Args:
        strategy: mirrored or multi-worker mirrored, made with these options.
        options: the options that the user asked for, or None.
        num_workers: how many processes sum gradients.
        timeout_seconds: how long the workers may take to connect.

    Raises:
        RuntimeError: if the native transport was asked for, and a worker cannot use it.
        ValueError: if the native transport was asked for, and a mirrored strategy cannot use it.
    """
    if strategy.num_replicas_in_sync > 1 and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        warn_unless_streams(strategy)
    choose_transport(strategy, options, num_workers=num_workers, timeout_seconds=timeout_seconds)
    if num_workers == 1:
        return remember_all_reduce(strategy, options)
    seconds = (options and options.timeout_seconds) or DEFAULT_TIMEOUT_SECONDS
    options = dataclasses.replace(options or AllReduceOptions(), timeout_seconds=seconds)
    return remember_all_reduce(strategy, options, SumDeadline(strategy, timeout_seconds=seconds))


def automatic_algorithm(
    strategy: str, options: AllReduceOptions | None, *, devices: int | Sequence[str] | None, gpus: int, is_split: bool
) -> str:
    """Returns what "auto" chooses, for the line of the log.

    Returns "" if the options name an algorithm, and if the strategy may get the native transport: the workers then have
    to agree, and choose_transport writes a line of its own.

    Across workers TensorFlow's runtime takes the ring for "auto", on GPUs too, and between logical GPUs as well.

    Args:
        strategy: mirrored or multi_worker_mirrored.
        options: the options that the user asked for, or None.
        devices: the local devices that the user asked for.
        gpus: how many GPUs this process has.
        is_split: whether the program has split a GPU into logical ones.

    Example:
        >>> from tfdist.strategies.all_reduce import automatic_algorithm
        >>> automatic_algorithm("mirrored", None, devices=2, gpus=2, is_split=False)
        'nccl'
        >>> automatic_algorithm("mirrored", None, devices=2, gpus=2, is_split=True)
        'ring'
    """
    if options is not None and options.algorithm != "auto":
        return ""
    kinds = {"GPU" if gpus else "CPU"}
    if devices is not None and not isinstance(devices, int):
        kinds = {"GPU" if "GPU" in name.upper() else "CPU" for name in devices}
    if kinds == {"CPU"}:
        return _automatic_on_cpus(options)
    if strategy == "multi_worker_mirrored":
        return "ring; algorithm='nccl' asks for NCCL, if no two workers share a GPU"
    if len(kinds) > 1:
        return "reduction_to_one_device"
    return "ring" if is_split else "nccl"


def _automatic_on_cpus(options: AllReduceOptions | None) -> str:
    if may_be_native(options):
        return ""
    if options is not None and options.transport == "tensorflow":
        return "ring"
    return f"ring ({NOT_INSTALLED})"


def refuse_all_reduce(strategy: str, options: AllReduceOptions | None) -> None:
    """Raises ValueError if any option is set for a strategy whose all-reduce cannot be configured."""
    if options not in (None, AllReduceOptions(), AllReduceOptions(compression="none")):
        raise ValueError(
            f"expected no all_reduce options for the strategy {strategy}, whose all-reduce cannot be configured, "
            f"received {options}."
        )


def _refuse_nccl_on_parts(is_split: bool) -> None:
    if is_split:
        raise ValueError(
            "expected a GPU for each replica for all_reduce.algorithm='nccl', received a GPU that is split into "
            "logical ones, which NCCL does not know; leave the algorithm out."
        )


def _refuse(strategy: str, options: AllReduceOptions, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise ValueError(
                f"expected no all_reduce.{name} for the strategy {strategy}, received {getattr(options, name)!r}; "
                f"{why}."
            )
