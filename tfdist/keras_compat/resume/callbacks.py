"""Calls a callback before or after all other callbacks of a fit, and reads and sets the plain values of the others.

AutoResume has to see what the other callbacks have done at the end of a step or an epoch, and to prepare the files of
the others before they open them. Keras calls callbacks in the order of the user's list.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfdist.keras_compat.version import keras

# Attributes that Keras sets when fit begins.
_OF_KERAS = {"params", "model", "_model", "validation_data", "_chief_worker_only", "_supports_tf_logs"}
_ARRAY = "array"


class LastCallback(keras().callbacks.Callback):  # type: ignore[misc]
    """A callback with methods that are called before or after those of all other callbacks.

    The methods do nothing; a subclass replaces them. `watch_callbacks` has to be called before fit.
    """

    # While this is true, the other callbacks do not see the begin and the end of a train step.
    hides_step = False

    def before_train(self, others: list[Any]) -> None:
        """Called before `on_train_begin` of any callback, with all other callbacks."""

    def before_epoch_begin(self, epoch: int) -> None:
        """Called before `on_epoch_begin` of any callback."""

    def after_epoch_begin(self, epoch: int) -> None:
        """Called after `on_epoch_begin` of all callbacks."""

    def after_train_batch(self, batch: int) -> None:
        """Called after `on_train_batch_end` of all callbacks, with the number of the last batch in its epoch."""

    def after_test_batch(self, batch: int) -> None:
        """Called after `on_test_batch_end` of all callbacks."""

    def after_epoch_end(self, epoch: int) -> None:
        """Called after `on_epoch_end` of all callbacks."""

    def after_train(self) -> None:
        """Called after `on_train_end` of all callbacks."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Does nothing. Because it exists, Keras calls callbacks in the thread of fit."""


@functools.cache
def watch_callbacks() -> None:
    """Patches Keras's list of callbacks, so that it calls the methods of LastCallback. Later calls do nothing."""
    callback_list = keras().callbacks.CallbackList
    stock_begin, stock_epoch = callback_list.on_train_begin, callback_list.on_epoch_begin

    @functools.wraps(stock_begin)
    def on_train_begin(self: Any, logs: Any = None) -> None:
        for last in _last(self):
            last.before_train([one for one in self.callbacks if one is not last])
        stock_begin(self, logs)

    @functools.wraps(stock_epoch)
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        for last in _last(self):
            last.before_epoch_begin(epoch)
        stock_epoch(self, epoch, logs)

    callback_list.on_train_begin, callback_list.on_epoch_begin = on_train_begin, on_epoch_begin
    for name in ("on_train_batch_begin", "on_train_batch_end"):
        setattr(callback_list, name, _unless_hidden(getattr(callback_list, name)))
    after: dict[str, Callable[[LastCallback, Any], None]] = {
        "on_epoch_begin": lambda last, epoch: last.after_epoch_begin(epoch),
        "on_train_batch_end": lambda last, batch: last.after_train_batch(batch),
        "on_test_batch_end": lambda last, batch: last.after_test_batch(batch),
        "on_epoch_end": lambda last, epoch: last.after_epoch_end(epoch),
        "on_train_end": lambda last, _: last.after_train(),
    }
    for name, call in after.items():
        setattr(callback_list, name, _followed_by(getattr(callback_list, name), call))


def _last(callback_list: Any) -> list[LastCallback]:
    return [one for one in callback_list.callbacks if isinstance(one, LastCallback)]


def _unless_hidden(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        if not any(last.hides_step for last in _last(self)):
            stock(self, *args, **kwargs)

    return method


def _followed_by(stock: Callable, call: Callable[[LastCallback, Any], None]) -> Callable:
    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        for last in _last(self):
            call(last, args[0] if args else None)

    return method


def plain_state(
    callback: Any, arrays: dict[str, np.ndarray], prefix: str, *, since: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the attributes of a callback that JSON can hold; arrays become entries of `arrays`.

    Args:
        callback: a callback of Keras or of the user.
        arrays: receives the arrays by name.
        prefix: beginning of the names of the arrays.
        since: a former result. Attributes that have not changed since are left out, so that the options that the
            program gives to a callback stay in force when the program changes them.
    """
    found: dict[str, Any] = {}
    for name, value in vars(callback).items():
        if name in _OF_KERAS:
            continue
        own: dict[str, np.ndarray] = {}
        try:
            packed = _packed(value, own, f"{prefix}/{name}")
        except TypeError:
            # Files, models and functions are made anew by the program.
            continue
        if own or since is None or since.get(name, found) != packed:
            found[name] = packed
            arrays.update(own)
    return found


def set_plain_state(callback: Any, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the attributes of a callback to the values that plain_state has returned.

    Args:
        callback: a callback of the same class.
        state: what plain_state returned.
        arrays: the arrays by name.
    """
    for name, value in state.items():
        setattr(callback, name, _unpacked(value, arrays))


def _packed(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        arrays[name] = np.array(value)
        return {_ARRAY: name, "is_scalar": isinstance(value, np.generic)}
    if isinstance(value, (list, tuple)):
        packed = [_packed(one, arrays, f"{name}/{i}") for i, one in enumerate(value)]
        return {"tuple": packed} if isinstance(value, tuple) else packed
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return {"dict": [[key, _packed(one, arrays, f"{name}/{key}")] for key, one in value.items()]}
    if callable(value) and _named(getattr(value, "__module__", ""), getattr(value, "__qualname__", "")) is value:
        # Keras 3 chooses the comparison of EarlyStopping and others at the end of the first epoch.
        return {"function": [value.__module__, value.__qualname__]}
    raise TypeError


def _named(module: str, name: str) -> Any:
    """Returns a function or class of a module; None if the module has none of this name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpacked(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_unpacked(one, arrays) for one in value["tuple"])
    if "dict" in value:
        return {key: _unpacked(one, arrays) for key, one in value["dict"]}
    if "function" in value:
        return _named(*value["function"])
    array = np.array(arrays[value[_ARRAY]])
    return array[()] if value["is_scalar"] else array
