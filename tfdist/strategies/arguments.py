"""Checks the types of the arguments of strategies, before TensorFlow or another worker is asked for anything."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Iterable
from typing import Any

from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.options import ALGORITHMS
from tfdist.cluster import ClusterConfig


def read_devices(devices: Any) -> int | list[str] | None:
    """Returns the devices that the user asked for: a number, names such as "GPU:0", or None.

    Args:
        devices: the argument of the user.

    Raises:
        ValueError: for anything else than None, a number of at least 1, and different names of devices.

    Example:
        >>> from tfdist.strategies.arguments import read_devices
        >>> read_devices(["/cpu:0", "/device:CPU:2"])
        ['CPU:0', 'CPU:2']
        >>> read_devices(2.0)
        Traceback (most recent call last):
        ...
        ValueError: expected devices to be a number or a list of names, received 2.0; write for example devices=2.
    """
    if devices is None:
        return None
    if isinstance(devices, str):
        written = devices if devices.isdecimal() else f"[{devices!r}]"
        raise ValueError(f"expected devices to be a number or a list of names, received {devices!r}; write {written}.")
    if isinstance(devices, numbers.Integral):
        if isinstance(devices, bool) or devices < 1:
            raise ValueError(f"expected devices to be at least 1, received {devices!r}; leave devices out to use all.")
        return operator.index(devices)
    if not isinstance(devices, Iterable):
        raise ValueError(
            f"expected devices to be a number or a list of names, received {devices!r}; write for example devices=2."
        )
    names = [_canonical(name) for name in devices]
    if not names:
        raise ValueError("expected at least one device, received an empty list; leave devices out to use all.")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise ValueError(f"expected each device once, received {', '.join(duplicates)} more than once.")
    return names


def _canonical(name: Any) -> str:
    pattern = r"(?:/device:|/)?(CPU|GPU):(\d+)"
    match = re.fullmatch(pattern, name.strip(), flags=re.IGNORECASE) if isinstance(name, str) else None
    if not match:
        raise ValueError(f"expected a device name such as 'GPU:0' or 'CPU:1', received {name!r}.")
    return f"{match[1].upper()}:{int(match[2])}"


def check_all_reduce(options: Any) -> None:
    """Raises ValueError unless the options are AllReduceOptions or None.

    Example:
        >>> from tfdist.strategies.arguments import check_all_reduce
        >>> check_all_reduce("ring")
        Traceback (most recent call last):
        ...
        ValueError: expected all_reduce to be a tfdist.AllReduceOptions, received 'ring'; write for example ...
    """
    if options is None or isinstance(options, AllReduceOptions):
        return
    algorithm = options if isinstance(options, str) and options in ALGORITHMS else "ring"
    raise ValueError(
        f"expected all_reduce to be a tfdist.AllReduceOptions, received {options!r}; write for example "
        f"tfdist.AllReduceOptions(algorithm={algorithm!r})."
    )


def check_cluster(cluster: Any) -> None:
    """Raises ValueError unless the cluster is a ClusterConfig or None."""
    if cluster is not None and not isinstance(cluster, ClusterConfig):
        raise ValueError(
            f"expected cluster to be a tfdist.cluster.ClusterConfig, received {cluster!r}; make one with "
            "ClusterConfig.from_tf_config(text), whose text is that of a TF_CONFIG."
        )


def check_startup_timeout(seconds: Any) -> None:
    """Raises ValueError unless the time is a positive, finite number or None.

    Example:
        >>> from tfdist.strategies.arguments import check_startup_timeout
        >>> check_startup_timeout("60")
        Traceback (most recent call last):
        ...
        ValueError: expected startup_timeout_seconds to be a positive, finite number, received '60'; leave it ...
    """
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds < math.inf):
        raise ValueError(
            f"expected startup_timeout_seconds to be a positive, finite number, received {seconds!r}; leave it out for "
            "300 s."
        )
