"""Reads and assigns the values that the replicas of this process have for a variable.

Most variables have equal values on all replicas, of which one is kept. Variables that TensorFlow synchronizes only when
they are read (batch statistics, metrics, residuals of compression) have a value of their own on each replica, and all
values are kept: the bits of a sum depend on its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable

_SEPARATOR = "@replica "


def read_values(variables: Mapping[str, tf.Variable], *, first_replica: int) -> dict[str, np.ndarray]:
    """Returns the values of variables by name; the names of values of a single replica contain its number.

    The arrays share the memory of the variables where that is possible. They are valid until the next step.

    Args:
        variables: the variables by name.
        first_replica: number of the first replica of this process among all replicas.
    """
    found = {}
    for name, variable in variables.items():
        if isinstance(variable, SyncOnReadVariable):
            for number, component in enumerate(variable.values):
                found[f"{name}{_SEPARATOR}{first_replica + number}"] = _array(component)
        else:
            found[name] = _array(_components(variable)[0])
    return found


def assign_values(
    variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray], *, first_replica: int
) -> list[str]:
    """Assigns values to variables, and returns the names of the variables that have no value.

    Args:
        variables: the variables by name.
        values: what read_values returned, perhaps of several processes together.
        first_replica: number of the first replica of this process among all replicas.
    """
    missing = []
    for name, variable in variables.items():
        for number, component in enumerate(_components(variable)):
            own = f"{name}{_SEPARATOR}{first_replica + number}"
            value = values.get(own if isinstance(variable, SyncOnReadVariable) else name)
            if value is None:
                missing.append(name)
                break
            component.assign(value)
    return missing


def variable_of(name: str) -> str:
    """Returns the name of the variable that a value belongs to.

    Args:
        name: a name that read_values has given.
    """
    return name.split(_SEPARATOR)[0]


def is_of_one_replica(name: str) -> bool:
    """Returns whether a value belongs to a single replica.

    Args:
        name: a name that read_values has given.
    """
    return _SEPARATOR in name


def _components(variable: Any) -> tuple[Any, ...]:
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)


def _array(component: Any) -> np.ndarray:
    value = component.read_value()
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):
        # The value is on an accelerator, or of a dtype without a buffer.
        return value.numpy()
