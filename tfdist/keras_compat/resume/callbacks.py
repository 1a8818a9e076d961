"""Calls a callback before or after all other callbacks of a fit.

AutoResume has to see what the other callbacks have done at the end of a step or an epoch, and to prepare the files of
the others before they open them. Keras calls callbacks in the order of the user's list.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.version import keras, keras_in_use


class LastCallback(keras().callbacks.Callback):  # type: ignore[misc]
    """A callback with methods that are called before or after those of all other callbacks.

    The methods do nothing; a subclass replaces them. `watch_callbacks` has to be called before fit.
    """

    # While this is true, the other callbacks do not see the begin and the end of a train step.
    hides_step = False

    def before_train(self, others: list[Any]) -> None:
        """Called before `on_train_begin` of any callback, with all other callbacks."""

    def after_train_begin(self) -> None:
        """Called after `on_train_begin` of all callbacks."""

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
        for last in _last(self):
            last.after_train_begin()

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
        "on_train_batch_end": lambda last, batch: last.after_train_batch(_last_step(last.model, batch)),
        "on_test_batch_end": lambda last, batch: last.after_test_batch(batch),
        "on_epoch_end": lambda last, epoch: last.after_epoch_end(epoch),
        "on_train_end": lambda last, _: last.after_train(),
    }
    for name, call in after.items():
        setattr(callback_list, name, _followed_by(getattr(callback_list, name), call))


def _last_step(model: Any, batch: int) -> int:
    """Returns the number of the last step of an execution, given the number that Keras gives to on_train_batch_end."""
    return batch + model.steps_per_execution - 1 if _ends_have_first_steps() else batch


@functools.cache
def _ends_have_first_steps() -> bool:
    """Returns whether on_train_batch_end gets the number of the first step of an execution, as until Keras 3.10."""
    if not keras_in_use().is_keras3:
        return False
    from keras.src.trainers import epoch_iterator

    return "end_step" not in inspect.getsource(epoch_iterator)


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
