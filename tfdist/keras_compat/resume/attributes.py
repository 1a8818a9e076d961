"""Reads and sets plain attributes of callbacks: numbers, texts, arrays, and containers of these."""

from __future__ import annotations

import collections
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# Attributes that Keras sets when fit begins.
_OF_KERAS = {"params", "model", "_model", "validation_data", "_chief_worker_only", "_supports_tf_logs"}
# What TensorBoard says of a trace that runs, which ends with the process.
_OF_A_TRACE = {"_is_tracing", "_profiler_started", "_should_trace", "_batch_trace_context"}
_ARRAY = "array"
# Their subclasses may have other arguments, so that only these classes themselves are kept.
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_DICTS: tuple[Any, ...] = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)


def plain_state(
    callback: Any, arrays: dict[str, np.ndarray], prefix: str, *, since: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns the attributes of a callback that JSON can hold; arrays become entries of `arrays`.

    Args:
        callback: a callback of Keras or of the user.
        arrays: receives the arrays by name.
        prefix: beginning of the names of the arrays.
        since: what `digests` has returned. Attributes that have not changed since are left out, so that what the
            program gives to a callback stays in force when the program changes it.
    """
    found: dict[str, Any] = {}
    for name, value in vars(callback).items():
        if name in _OF_KERAS | _OF_A_TRACE:
            continue
        own: dict[str, np.ndarray] = {}
        try:
            packed = _packed(value, own, f"{prefix}/{name}")
        except TypeError:
            # Files, models and functions are made anew by the program.
            continue
        if since is None or since.get(name) != _digest(packed, own):
            found[name] = packed
            arrays.update(own)
    return found


def digests(callback: Any, prefix: str) -> dict[str, str]:
    """Returns what plain_state compares the attributes of a callback with.

    Args:
        callback: a callback of Keras or of the user.
        prefix: beginning of the names of the arrays.
    """
    arrays: dict[str, np.ndarray] = {}
    state = plain_state(callback, arrays, prefix)
    return {name: _digest(packed, _within(arrays, f"{prefix}/{name}")) for name, packed in state.items()}


def _within(arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in arrays.items() if f"{key}/".startswith(f"{name}/")}


def _digest(packed: Any, arrays: Mapping[str, np.ndarray]) -> str:
    # repr tells 1 from 1.0 and from True.
    digest = hashlib.blake2b(repr(packed).encode(), digest_size=16)
    for array in arrays.values():
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def set_plain_state(callback: Any, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the attributes of a callback to the values that plain_state has returned.

    Args:
        callback: a callback of the same class.
        state: what plain_state returned.
        arrays: the arrays by name.

    Raises:
        ValueError: if the state is none that plain_state returns.
    """
    for name, value in state.items():
        setattr(callback, name, _unpacked(value, arrays))


def _packed(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        arrays[name] = np.array(value)
        return {_ARRAY: name, "is_scalar": isinstance(value, np.generic)}
    kind = type(value)
    if kind in _SEQUENCES or hasattr(kind, "_fields"):
        packed = [_packed(one, arrays, f"{name}/{i}") for i, one in enumerate(value)]
        if kind is list:
            return packed
        if kind is collections.deque:
            return {"deque": packed, "maxlen": value.maxlen}
        # A named tuple is made anew by its class.
        return {kind.__name__: packed} if kind in _SEQUENCES else {"named": _reference(kind), "values": packed}
    if kind in _DICTS and all(isinstance(key, (str, int)) for key in value):
        items = [[key, _packed(one, arrays, f"{name}/{key}")] for key, one in value.items()]
        if kind is collections.defaultdict:
            return {
                "defaultdict": items,
                "factory": None if value.default_factory is None else _reference(value.default_factory),
            }
        return {kind.__name__: items}
    if callable(value):
        # Keras 3 chooses the comparison of EarlyStopping and others at the end of the first epoch.
        return {"function": _reference(value)}
    raise TypeError


def _reference(value: Any) -> list[str]:
    """Returns module and name of a function or class.

    Raises:
        TypeError: if it has no name, such as a lambda function.
    """
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if _named(module, name) is not value:
        raise TypeError
    return [module, name]


def _named(module: str, name: str) -> Any:
    """Returns a function or class of a module; None if the module has none of this name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _named_tuple(kind: Any, values: list[Any]) -> Any:
    # Any other function would be called with arguments that the writer of the snapshot has chosen: os.system, too.
    if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise ValueError(f"expected the class of a named tuple in the snapshot, received {kind!r}.")
    return kind(*values)


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "function" in value:
        return _named(*value["function"])
    if "named" in value:
        return _named_tuple(_named(*value["named"]), _unpacked(value["values"], arrays))
    if "deque" in value:
        return collections.deque(_unpacked(value["deque"], arrays), value["maxlen"])
    for kind in _SEQUENCES:
        if kind.__name__ in value:
            return kind(_unpacked(value[kind.__name__], arrays))
    for kind in _DICTS:
        if kind.__name__ in value:
            made = {key: _unpacked(one, arrays) for key, one in value[kind.__name__]}
            if kind is collections.defaultdict:
                return kind(None if value["factory"] is None else _named(*value["factory"]), made)
            return kind(made)
    array = np.array(arrays[value[_ARRAY]])
    return array[()] if value["is_scalar"] else array
