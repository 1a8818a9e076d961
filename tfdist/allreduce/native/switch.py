"""Chooses the transport of single steps of a strategy that has the native transport, so that they can be compared."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist.allreduce.streams import communicators_of


@contextlib.contextmanager
def sending_with(transport: str, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """In the body of the `with` statement, what is traced is sent with this transport. All workers do this together.

    Args:
        transport: "tensorflow" or "native".
        strategy: a strategy; with the native transport, if this is asked for.

    Raises:
        ValueError: if the strategy has not got the native transport that is asked for.

    Example:
        >>> import tfdist
        >>> from tfdist.allreduce.native.switch import sending_with
        >>> with sending_with("tensorflow", tfdist.create_strategy("one_device")):
        ...     pass
    """
    communicators = communicators_of(strategy)
    if transport == "native" and not communicators:
        raise ValueError(f"expected a strategy with the native transport, received {strategy!r}.")
    if transport == "native" or not communicators:
        yield
        return
    operations, stock = strategy._tfdist_stock_launchers
    native = operations._launchers
    operations._launchers, strategy._tfdist_communicators = stock, ()
    try:
        yield
    finally:
        operations._launchers, strategy._tfdist_communicators = native, communicators
