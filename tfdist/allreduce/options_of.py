"""The all-reduce options that a strategy was made with, and those of an optimizer under that strategy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.allreduce.options import AllReduceOptions

if TYPE_CHECKING:
    from tfdist.allreduce.deadline import SumDeadline


def remember_all_reduce(
    strategy: tf.distribute.Strategy, options: AllReduceOptions | None, deadline: SumDeadline | None = None
) -> tf.distribute.Strategy:
    """Stores on a strategy the options that it was made with, and returns the strategy.

    Args:
        strategy: a strategy that tfdist has made.
        options: the options that the user asked for, or None.
        deadline: the deadline of its sums of gradients; None if the strategy has only one worker.
    """
    strategy._tfdist_all_reduce = options or AllReduceOptions()
    strategy._tfdist_deadline = deadline
    return strategy


def all_reduce_of(strategy: tf.distribute.Strategy) -> AllReduceOptions:
    """Returns the options that a strategy was made with; the defaults for a strategy that tfdist has not made."""
    return getattr(strategy, "_tfdist_all_reduce", AllReduceOptions())


def is_of_tfdist(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether tfdist has made a strategy, and applied the mends that it needs."""
    return hasattr(strategy, "_tfdist_all_reduce")


def options_of_path(asked: AllReduceOptions | None, of_strategy: AllReduceOptions) -> AllReduceOptions:
    """Returns the options that a DistributedOptimizer or LocalSGD sends with.

    Args:
        asked: the options that the optimizer was given. The strategy's options replace those that are None.
        of_strategy: the options that the strategy was made with.

    Raises:
        ValueError: if the optimizer asks for an option that only a strategy can honour, and the strategy has another.

    Example:
        >>> from tfdist import AllReduceOptions
        >>> from tfdist.allreduce.options_of import options_of_path
        >>> options_of_path(None, AllReduceOptions(bytes_per_pack=100)).bytes_per_pack
        100
    """
    if asked is None:
        return of_strategy
    for name in ("algorithm", "num_packs", "timeout_seconds", "transport"):
        value = getattr(asked, name)
        if value not in (None, "auto") and value != getattr(of_strategy, name):
            raise ValueError(
                f"expected all_reduce.{name} of an optimizer to be the strategy's, "
                f"{getattr(of_strategy, name)!r}, received {value!r}; give it to create_strategy."
            )
    return dataclasses.replace(
        of_strategy,
        **{
            name: getattr(asked, name) for name in ("bytes_per_pack", "compression") if getattr(asked, name) is not None
        },
    )


def refuse_lost_compression(strategy: tf.distribute.Strategy, optimizer: str) -> None:
    """Raises ValueError if gradients would be sent uncompressed although the strategy was made with compression.

    Args:
        strategy: the strategy whose replica is about to send gradients.
        optimizer: the name of the optimizer that sends them, for the message.
    """
    compression = all_reduce_of(strategy).compressor
    if compression is not None:
        raise ValueError(
            f"expected a DistributedOptimizer for all_reduce.compression, {compression}, received {optimizer}; "
            "wrap it in tfdist.optimizers.DistributedOptimizer."
        )
