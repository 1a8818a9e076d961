"""Whether tfdist itself makes a strategy at the moment, so that adoption leaves its constructor alone."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

_ever: list[bool] = []
_making: contextvars.ContextVar[bool] = contextvars.ContextVar("making", default=False)


@contextlib.contextmanager
def making_strategy() -> Iterator[None]:
    """Marks the strategies that are made in the context, or in the decorated function, as those of tfdist.

    Example:
        >>> with making_strategy():
        ...     is_making_strategy()
        True
    """
    _ever[:] = [True]
    token = _making.set(True)
    try:
        yield
    finally:
        _making.reset(token)


def is_making_strategy() -> bool:
    """Returns whether tfdist makes the strategy whose constructor runs.

    Example:
        >>> is_making_strategy()
        False
    """
    return _making.get()


def has_made_strategies() -> bool:
    """Returns whether a strategy was created or adopted in this process, or its making has failed."""
    return bool(_ever)
