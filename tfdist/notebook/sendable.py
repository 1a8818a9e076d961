"""Finds the value that keeps a function from being sent to another process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle


def what_cannot_be_sent(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Returns the name of the first value that cannot be pickled.

    Args:
        function: a function.
        args: its arguments.
        kwargs: its keyword arguments.

    Example:
        >>> import threading
        >>> from tfdist.notebook.sendable import what_cannot_be_sent
        >>> lock = threading.Lock()
        >>> what_cannot_be_sent(lambda: lock, (), {})
        "the variable 'lock', a lock"
    """
    named = [(f"the argument {number + 1}", value) for number, value in enumerate(args)]
    named += [(f"the argument {name!r}", value) for name, value in kwargs.items()]
    if inspect.isfunction(function):
        used = inspect.getclosurevars(function)
        named += [(f"the variable {name!r}", value) for name, value in {**used.globals, **used.nonlocals}.items()]
    for name, value in named:
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name}, a {type(value).__name__}"
    return "a value that it uses"
