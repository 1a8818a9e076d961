"""Checks the arguments of `run` before any process starts."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "threads_per_task": ("a whole number or None", (numbers.Integral, type(None))),
    "timeout_seconds": ("a number of seconds or None", (numbers.Real, type(None))),
    "log_dir": ("the path of a directory or None", (str, os.PathLike, type(None))),
    "verbose": ("True or False", (bool,)),
}


def call_arguments(args: Any) -> tuple[Any, ...]:
    """Returns the arguments of the function as a tuple.

    Args:
        args: what the user has given as `args`.

    Raises:
        ValueError: for a text, whose letters would be the arguments, and for a single value.

    Example:
        >>> from tfdist.notebook.arguments import call_arguments
        >>> call_arguments([0.1, "adam"])
        (0.1, 'adam')
        >>> call_arguments("adam")
        Traceback (most recent call last):
        ...
        ValueError: expected args to be a list of arguments, received 'adam'; write args=['adam'].
    """
    # A dict would be its keys, and a set has no order.
    if isinstance(args, (list, tuple)):
        return tuple(args)
    if isinstance(args, (str, bytes, Mapping)) or not hasattr(args, "__iter__"):
        raise ValueError(f"expected args to be a list of arguments, received {args!r}; write args=[{args!r}].")
    return tuple(args)


def named(name: str, given: Any) -> dict[str, Any]:
    """Returns an argument of `run` that is a dict with names.

    Args:
        name: the argument of `run`.
        given: what the user has given; None is an empty dict.

    Raises:
        ValueError: if it is no dict, or a name is no text.

    Example:
        >>> from tfdist.notebook.arguments import named
        >>> named("kwargs", {"epochs": 3})
        {'epochs': 3}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise ValueError(f"expected {name} to be a dict with names, received {given!r}.")
    return dict(given)


def variables(env: Any) -> dict[str, str]:
    """Returns environment variables; a whole number becomes a text, as in {"TF_USE_LEGACY_KERAS": 1}.

    Args:
        env: what the user has given as `env`.

    Raises:
        ValueError: if a value is no text and no whole number.

    Example:
        >>> from tfdist.notebook.arguments import variables
        >>> variables({"TF_USE_LEGACY_KERAS": 1})
        {'TF_USE_LEGACY_KERAS': '1'}
    """
    found = named("env", env)
    for name, value in found.items():
        # True could be meant as "1" or as "true".
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise ValueError(f"expected the value of {name} in env to be a text, received {value!r}.")
    return {name: str(value) for name, value in found.items()}


def check_types(**given: Any) -> None:
    """Raises ValueError for an argument of `run` of another type, such as the text "2" for a number.

    Args:
        given: the arguments by name.

    Example:
        >>> from tfdist.notebook.arguments import check_types
        >>> check_types(workers=2, timeout_seconds=0.5, log_dir=None)
        >>> check_types(workers="2")
        Traceback (most recent call last):
        ...
        ValueError: expected workers to be a whole number, received '2'.
    """
    for name, value in given.items():
        kind, types = _TYPES.get(name, ("a whole number", (numbers.Integral,)))
        # True is a whole number in Python.
        if isinstance(value, bool) != (bool in types) or not isinstance(value, types):
            raise ValueError(f"expected {name} to be {kind}, received {value!r}.")


def check_module(name: str) -> None:
    """Raises ValueError if a text is the path of a file, and not the name of a module.

    Args:
        name: what the user has given as the name of a module.

    Example:
        >>> from tfdist.notebook.arguments import check_module
        >>> check_module("train.py")
        Traceback (most recent call last):
        ...
        ValueError: expected a function, or the name of a module, received the file 'train.py'; write 'train'.
    """
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        raise ValueError(f"expected a function, or the name of a module, received the file {name!r}; write {module!r}.")
