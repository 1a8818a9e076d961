"""Which options hold: those that a strategy was made with, and those that an optimizer asks for."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.allreduce.options import AllReduceOptions


def remember_all_reduce(strategy: tf.distribute.Strategy, options: AllReduceOptions | None) -> tf.distribute.Strategy:
    """Lets a strategy remember the options that it was made with, and returns it."""
    strategy._tfdist_all_reduce = options or AllReduceOptions()
    return strategy


def all_reduce_of(strategy: tf.distribute.Strategy) -> AllReduceOptions:
    """Returns the options that a strategy was made with; the default ones for a strategy that is not tfdist's."""
    return getattr(strategy, "_tfdist_all_reduce", AllReduceOptions())


def is_of_tfdist(strategy: tf.distribute.Strategy) -> bool:
    """Whether tfdist has made a strategy, and mended the Keras that it is for."""
    return hasattr(strategy, "_tfdist_all_reduce")


def options_of_path(asked: AllReduceOptions | None, of_strategy: AllReduceOptions) -> AllReduceOptions:
    """Returns the options of a gradient path.

    Args:
        asked: of the optimizer; what it leaves out is the strategy's.
        of_strategy: what the strategy was made with.

    Raises:
        ValueError: where the optimizer asks for what only a strategy can do, and its strategy does not.

    Example:
        >>> from tfdist import AllReduceOptions
        >>> from tfdist.allreduce.options_of import options_of_path
        >>> options_of_path(None, AllReduceOptions(bytes_per_pack=100)).bytes_per_pack
        100
    """
    if asked is None:
        return of_strategy
    for name in ("algorithm", "num_packs", "timeout_seconds"):
        value = getattr(asked, name)
        if value not in (None, "auto") and value != getattr(of_strategy, name):
            raise ValueError(
                f"expected all_reduce.{name} of DistributedOptimizer to be the strategy's, "
                f"{getattr(of_strategy, name)!r}, received {value!r}; give it to create_strategy."
            )
    return dataclasses.replace(
        of_strategy,
        **{
            name: getattr(asked, name) for name in ("bytes_per_pack", "compression") if getattr(asked, name) is not None
        },
    )


def refuse_lost_compression(strategy: tf.distribute.Strategy, optimizer: str) -> None:
    """Raises ValueError where gradients are to be sent as they are though the strategy was asked for compression.

    Args:
        strategy: of the replica that is about to send.
        optimizer: what to call the one that sends.
    """
    compression = all_reduce_of(strategy).compressor
    if compression is not None:
        raise ValueError(
            f"expected a DistributedOptimizer for all_reduce.compression, {compression}, received {optimizer}; "
            "wrap it in tfdist.optimizers.DistributedOptimizer."
        )
