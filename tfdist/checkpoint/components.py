"""Reads and assigns the values that the replicas of this process have for a variable.

Most variables have equal values on all replicas, of which one is kept. Variables that TensorFlow synchronizes only when
they are read (batch statistics, metrics, residuals of compression) have a value of their own on each replica, and all
values are kept: the bits of a sum depend on its parts. So are those of replicas that train on their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable

_SEPARATOR = "@replica "
# The residuals of compression are of this kind: the sum of their values over the replicas matters.
_RESIDUALS = "others/"


def read_values(
    variables: Mapping[str, tf.Variable], *, first_replica: int, differing: Collection[int] = ()
) -> dict[str, np.ndarray]:
    """Returns the values of variables by name; the names of values of a single replica contain its number.

    The arrays share the memory of the variables where that is possible. They are valid until the next step.

    Args:
        variables: the variables by name.
        first_replica: number of the first replica of this process among all replicas.
        differing: the id() of each mirrored variable whose values differ between replicas.
    """
    found = {}
    for name, variable in variables.items():
        if _is_of_replicas(variable, differing):
            for number, component in enumerate(_components(variable)):
                found[name_of(name, first_replica + number)] = _array(component)
        else:
            found[name] = _array(_components(variable)[0])
    return found


def assign_values(
    variables: Mapping[str, tf.Variable],
    values: Mapping[str, np.ndarray],
    *,
    first_replica: int,
    replicas: int,
    former_replicas: int,
    differing: Collection[int] = (),
) -> list[str]:
    """Assigns values to variables, and returns the names of the variables that have no value.

    Args:
        variables: the variables by name.
        values: what read_values returned. The values of all replicas are needed if their number has changed.
        first_replica: number of the first replica of this process among all replicas.
        replicas: number of replicas of this training.
        former_replicas: number of replicas of the training that has read the values.
        differing: the id() of each mirrored variable whose values differ between replicas.
    """
    missing = []
    for name, variable in variables.items():
        components = _components(variable)
        own = range(first_replica, first_replica + len(components))
        is_of_replicas = _is_of_replicas(variable, differing)
        found: Sequence[np.ndarray | None]
        if is_of_replicas and former_replicas == replicas and name not in values:
            found = [values.get(name_of(name, number)) for number in own]
        else:
            former = (
                [values[name]]
                if name in values
                else [values.get(name_of(name, number)) for number in range(former_replicas)]
            )
            if any(value is None for value in former):
                # What differed when it was stored, such as a layer that is frozen now, may not differ any more.
                found = [values.get(name_of(name, number)) for number in own] if former_replicas == replicas else [None]
            else:
                aggregation = variable.aggregation
                is_residual = name.startswith(_RESIDUALS) and id(variable) not in differing
                is_sum = is_residual and getattr(variable, "_tfdist_is_sum", True)
                if aggregation == tf.VariableAggregation.NONE and not is_sum:
                    # On one device, Keras 3 gives batch statistics no aggregation, and weights never have one.
                    aggregation = tf.VariableAggregation.MEAN
                shares = redistribute(former, aggregation, replicas=replicas if is_of_replicas else 1)
                found = [shares[number] for number in own] if is_of_replicas else shares * len(components)
        if any(value is None for value in found):
            missing.append(name)
            continue
        for component, value in zip(components, found, strict=True):
            component.assign(value)
    return missing


def redistribute(values: Sequence[Any], aggregation: tf.VariableAggregation, *, replicas: int) -> list[np.ndarray]:
    """Returns the values that another number of replicas has instead of those of the former replicas.

    Args:
        values: the value of each former replica.
        aggregation: how TensorFlow combines the values when the variable is read. For a variable without aggregation,
            such as the residuals of compression, the sum of floating-point values stays the same.
        replicas: the new number of replicas.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> from tfdist.checkpoint.components import redistribute
        >>> values = [np.array(3.0), np.array(5.0)]
        >>> [float(value) for value in redistribute(values, tf.VariableAggregation.SUM, replicas=3)]
        [8.0, 0.0, 0.0]
        >>> [float(value) for value in redistribute(values, tf.VariableAggregation.MEAN, replicas=1)]
        [4.0]
    """
    first = np.asarray(values[0])
    if len(values) == 1 and replicas == 1:
        return [first]
    is_floating = not (np.issubdtype(first.dtype, np.integer) or first.dtype == bool)
    if aggregation == tf.VariableAggregation.SUM:
        return [sum(values[1:], first).astype(first.dtype), *[np.zeros_like(first)] * (replicas - 1)]
    if aggregation == tf.VariableAggregation.MEAN and is_floating:
        return [(sum(values[1:], first) / len(values)).astype(first.dtype)] * replicas
    if aggregation == tf.VariableAggregation.NONE and is_floating:
        return [(sum(values[1:], first) / replicas).astype(first.dtype)] * replicas
    return [first] * replicas


def name_of(variable: str, replica: int) -> str:
    """Returns the name of the value that a variable has on a replica.

    Args:
        variable: name of the variable.
        replica: number of the replica.
    """
    return f"{variable}{_SEPARATOR}{replica}"


def variable_of(name: str) -> str:
    """Returns the name of the variable that a value belongs to.

    Args:
        name: a name that read_values has given.
    """
    return name.split(_SEPARATOR)[0]


def replica_of(name: str) -> int:
    """Returns the number of the replica that a value belongs to.

    Args:
        name: the name of a value of a single replica.
    """
    return int(name.split(_SEPARATOR)[1])


def is_of_one_replica(name: str) -> bool:
    """Returns whether a value belongs to a single replica.

    Args:
        name: a name that read_values has given.
    """
    return _SEPARATOR in name


def _is_of_replicas(variable: Any, differing: Collection[int]) -> bool:
    return isinstance(variable, SyncOnReadVariable) or id(variable) in differing


def _components(variable: Any) -> tuple[Any, ...]:
    return tuple(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else (variable,)


def _array(component: Any) -> np.ndarray:
    value = component.read_value()
    try:
        return np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError):
        # The value is on an accelerator, or of a dtype without a buffer.
        return value.numpy()
