"""staleness_of: what the parameter servers of a strategy, a model or an optimizer counted."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.averaging.staleness import StalenessCounts
from tfdist.averaging.versioned_updates import VersionedUpdates
from tfdist.keras_compat.optimizers.hooked import optimizers_of


def staleness_of(subject: Any) -> StalenessCounts:
    """Returns what parameter servers did with the gradients that arrived until now.

    Args:
        subject: a strategy from `create_strategy("parameter_server", staleness=...)`, for the sum over all optimizers;
            a model that was made in its scope, for the sum over its optimizers; or an optimizer that was used with it.

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
        updates, optimizers = getattr(subject, "tfdist_updates", None), None
    else:
        optimizers = optimizers_of(subject) or [subject]
        of_strategy = getattr(getattr(subject, "distribute_strategy", None), "tfdist_updates", None)
        updates = next(filter(None, map(VersionedUpdates.of, optimizers)), of_strategy)
    if updates is None:
        raise ValueError(
            "expected a strategy that was made with staleness=tfdist.averaging.Staleness(...), or a model or optimizer "
            f"that was used with it, received {type(subject).__name__}."
        )
    return updates.counts(optimizers)
