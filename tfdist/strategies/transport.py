"""Gives a strategy the transport of its sums, and says in the log which one it is."""

from __future__ import annotations

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce import AllReduceOptions
from tfdist.allreduce.native.install import (
    KNOWN_BEFORE,
    advice_for,
    install,
    install_within_process,
    renew_within_process,
)
from tfdist.allreduce.native.library import is_installed
from tfdist.keras_compat.steps.renew_after_error import call_after_errors

OWN_ALGORITHM = "auto"
"""The only algorithm that goes through the native transport, whose sums are always made in the same way."""


def may_be_native(options: AllReduceOptions | None) -> bool:
    """Returns whether the sums of replicas on CPUs may go through the native transport, as far as one process knows.

    Args:
        options: the options that the user asked for, or None.

    Example:
        >>> from tfdist import AllReduceOptions
        >>> from tfdist.strategies.transport import may_be_native
        >>> may_be_native(AllReduceOptions(transport="native"))
        True
        >>> may_be_native(AllReduceOptions(transport="tensorflow")), may_be_native(AllReduceOptions(algorithm="ring"))
        (False, False)
    """
    options = options or AllReduceOptions()
    if options.algorithm != OWN_ALGORITHM:
        return False
    return options.transport == "native" or (options.transport == "auto" and is_installed())


def choose_transport(
    strategy: tf.distribute.Strategy, options: AllReduceOptions | None, *, num_workers: int, timeout_seconds: float
) -> None:
    """Gives a strategy the native transport if the options allow it and all workers can use it.

    Args:
        strategy: mirrored or multi-worker mirrored, made with these options.
        options: the options that the user asked for, or None.
        num_workers: how many processes sum gradients; all of them call this function.
        timeout_seconds: how long the workers may take to connect.

    Raises:
        RuntimeError: if the native transport was asked for, and a worker cannot use it.
        ValueError: if the native transport was asked for, and a mirrored strategy cannot use it.
    """
    options = options or AllReduceOptions()
    if options.transport == "tensorflow" or strategy.num_replicas_in_sync == 1:
        return
    if options.algorithm != OWN_ALGORITHM:
        if is_installed() and options.transport == "auto":
            get_logger().info(
                "all-reduce: %s through TensorFlow, as asked; only the algorithm auto goes through tfdist-native",
                options.algorithm,
            )
        return
    if num_workers > 1:
        # Also without the package, since the others may have it and have to know.
        why = install(strategy, asked=options.transport, timeout_seconds=timeout_seconds)
    elif may_be_native(options):
        why = install_within_process(strategy)
        if why and options.transport == "native":
            raise ValueError(
                f"expected the native transport to be usable within one process, received: {why}; {advice_for(why)}"
                "leave all_reduce.transport out."
            )
        if not why:
            call_after_errors(renew_within_process)
    else:
        return
    if not why:
        get_logger().info("all-reduce: auto chose tfdist-native")
    elif why not in KNOWN_BEFORE:
        get_logger().info("all-reduce: auto chose ring through TensorFlow instead of tfdist-native: %s", why)
