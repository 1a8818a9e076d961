"""Calls methods of a callback right before and right after the steps of fit, evaluate and predict.

Keras calls callbacks in the order of the user's list. The time of a step must not contain that of other callbacks, and
an evaluation within fit must be known before any other callback runs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from tfdist.keras_compat.version import keras

KINDS = {"train": "training", "test": "evaluation", "predict": "prediction"}


class StepCallback(keras().callbacks.Callback):  # type: ignore[misc]
    """A callback with methods that are called before or after those of all other callbacks.

    The methods do nothing; a subclass replaces them. `watch_steps` has to be called before fit.
    """

    def before_run(self, kind: str, code: CodeType) -> None:
        """Called before `on_train_begin`, or on_test_begin or on_predict_begin, of any callback.

        Args:
            kind: "training", "evaluation" or "prediction".
            code: code of the function that has called the callbacks, such as fit.
        """

    def after_run(self, kind: str) -> None:
        """Called after `on_train_end`, or on_test_end or on_predict_end, of all callbacks."""

    def before_epoch(self, epoch: int) -> None:
        """Called before `on_epoch_begin` of any callback."""

    def after_steps(self, epoch: int) -> None:
        """Called before `on_epoch_end` of any callback."""

    def before_step(self, kind: str, batch: int) -> None:
        """Called after `on_train_batch_begin`, or that of test or predict, of all callbacks."""

    def after_step(self, kind: str, batch: int) -> None:
        """Called before `on_train_batch_end`, or that of test or predict, of any callback."""


@functools.cache
def watch_steps() -> None:
    """Patches Keras's list of callbacks, so that it calls the methods of StepCallback. Later calls do nothing."""
    _first("on_epoch_begin", lambda one, epoch: one.before_epoch(epoch))
    _first("on_epoch_end", lambda one, epoch: one.after_steps(epoch))
    for name, kind in KINDS.items():
        _watch_kind(name, kind)


def _watch_kind(name: str, kind: str) -> None:
    _first(f"on_{name}_batch_end", lambda one, batch: one.after_step(kind, batch))
    _last(f"on_{name}_batch_begin", lambda one, batch: one.before_step(kind, batch))
    _last(f"on_{name}_end", lambda one, _: one.after_run(kind))
    _first_with_caller(f"on_{name}_begin", kind)


def _first(name: str, call: Callable[[StepCallback, Any], None]) -> None:
    callback_list = keras().callbacks.CallbackList
    stock = getattr(callback_list, name)

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        for one in self.callbacks:
            if isinstance(one, StepCallback):
                call(one, args[0] if args else None)
        stock(self, *args, **kwargs)

    setattr(callback_list, name, method)


def _last(name: str, call: Callable[[StepCallback, Any], None]) -> None:
    callback_list = keras().callbacks.CallbackList
    stock = getattr(callback_list, name)

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        for one in self.callbacks:
            if isinstance(one, StepCallback):
                call(one, args[0] if args else None)

    setattr(callback_list, name, method)


def _first_with_caller(name: str, kind: str) -> None:
    callback_list = keras().callbacks.CallbackList
    stock = getattr(callback_list, name)

    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        code = _caller()
        for one in self.callbacks:
            if isinstance(one, StepCallback):
                one.before_run(kind, code)
        stock(self, *args, **kwargs)

    setattr(callback_list, name, method)


def _caller() -> CodeType:
    """Returns the code of the function that has called the list of callbacks, beyond other patches of the list."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_name in ("method", *(f"on_{name}_begin" for name in KINDS)):
        frame = frame.f_back
    return frame.f_code
