"""Reads single environment variables of schedulers; each error names the variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Numbers of jobs may have ten digits, as those of federations of Slurm clusters do.
_MOST_DIGITS = 18


def text_of(environment: Mapping[str, str], *names: str) -> str:
    """Returns the first of some variables that is set.

    Args:
        environment: the environment variables.
        names: the variables, the preferred one first.

    Raises:
        ValueError: if none of them is set.

    Example:
        >>> text_of({"SLURM_NTASKS": "4"}, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
        '4'
    """
    for name in names:
        if environment.get(name, "").strip():
            return environment[name].strip()
    raise ValueError(f"expected the environment variable {' or '.join(names)}, received none of them.")


def number_of(environment: Mapping[str, str], *names: str, below: int | None = None) -> int:
    """Returns the whole number in the first of some variables that is set.

    Args:
        environment: the environment variables.
        names: the variables, the preferred one first.
        below: the number has to be smaller.

    Raises:
        ValueError: if none of them is set, or if it is no whole number of at least 0.

    Example:
        >>> number_of({"SLURM_PROCID": "3"}, "SLURM_PROCID", below=4)
        3
    """
    text = text_of(environment, *names)
    name = next(name for name in names if environment.get(name, "").strip())
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise ValueError(f"expected the environment variable {name} to be a whole number, received {text!r}.")
    if below is not None and int(text) >= below:
        raise ValueError(f"expected the environment variable {name} to be below {below}, received {text}.")
    return int(text)


def json_of(environment: Mapping[str, str], name: str, *, kind: type, shown: str) -> Any:
    """Returns the JSON value in a variable.

    Args:
        environment: the environment variables.
        name: the variable.
        kind: the type of the value: dict or list.
        shown: an example of the value, for the error.

    Raises:
        ValueError: if the variable is not set, or is no JSON value of this type.

    Example:
        >>> json_of({"SM_HOSTS": '["algo-1"]'}, "SM_HOSTS", kind=list, shown='["algo-1"]')
        ['algo-1']
    """
    text = text_of(environment, name)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, kind):
        raise ValueError(f"expected the environment variable {name} to be JSON such as {shown}, received {text!r}.")
    return value
