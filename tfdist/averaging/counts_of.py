"""staleness_of: what the parameter servers of a strategy, a model or an optimizer counted."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.averaging.staleness import StalenessCounts
from tfdist.averaging.versioned_updates import VersionedUpdates


def staleness_of(subject: Any) -> StalenessCounts:
    """Returns what parameter servers did with the gradients that arrived until now.

    Args:
        subject: a strategy from `create_strategy("parameter_server", staleness=...)`, for the sum over all optimizers;
            a model that was made in its scope; or an optimizer that was used with it.

    Raises:
        ValueError: if the strategy was made without `staleness`.

    Example:
        >>> import tfdist
        >>> from tfdist.averaging import staleness_of
        >>> staleness_of(tfdist.create_strategy("one_device"))
        Traceback (most recent call last):
        ...
        ValueError: expected a strategy that was made with staleness=tfdist.averaging.Staleness(...), or a model ...
    """
    if isinstance(subject, tf.distribute.Strategy):
        updates, optimizer = getattr(subject, "tfdist_updates", None), None
    else:
        optimizer = getattr(subject, "optimizer", subject)
        updates = VersionedUpdates.of(optimizer)
        if updates is None:
            updates = getattr(getattr(subject, "distribute_strategy", None), "tfdist_updates", None)
    if updates is None:
        raise ValueError(
            "expected a strategy that was made with staleness=tfdist.averaging.Staleness(...), or a model or optimizer "
            f"that was used with it, received {type(subject).__name__}."
        )
    return updates.counts(optimizer)
