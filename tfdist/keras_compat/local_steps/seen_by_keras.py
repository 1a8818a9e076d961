"""Shows evaluation, saving and callbacks the common weights of replicas that train on their own.

evaluate, predict, saving, and the callbacks of epochs run while all replicas have the values that the hook of the
optimizer shows; afterwards each replica gets its own values back. When fit ends, the shown values stay until training
goes on, because a program may read them directly.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

from tfdist._log import get_logger
from tfdist.keras_compat.local_steps.stop_together import begin_to_train, ending_together
from tfdist.keras_compat.optimizers.hooked import hook_of_model, hook_that_trains
from tfdist.keras_compat.version import keras_in_use, trainer_class

_READING = ("evaluate", "predict", "predict_on_batch", "test_on_batch")
_SAVING = ("save", "save_weights", "export", "get_weights")
_OF_EPOCHS = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")
_OF_BATCHES = ("on_train_batch_begin", "on_train_batch_end")
_KNOWN = ("keras.", "tf_keras.", "tensorflow.", "tfdist.")
_patched: list[type] = []


def show_seen_values() -> None:
    """Patches the models and callbacks of the Keras in use, once."""
    trainer = trainer_class()
    if trainer in _patched:
        return
    _patched.append(trainer)
    model = importlib.import_module("tensorflow").keras.Model
    for name in _READING:
        _patch(trainer, name, _while_shown)
    for name in _SAVING:
        if hasattr(model, name):
            _patch(model, name, _while_shown)
    # In Keras 3 a base class has `compile`; a model whose class has another one is not compiled when it is loaded.
    _patch(next(one for one in trainer.__mro__ if "compile" in vars(one)), "compile", _telling_statistics)
    _patch(trainer, "fit", _training(shows_after=True))
    # After a single batch nothing is shown, since all replicas would have to wait for it in each step.
    _patch(trainer, "train_on_batch", _training(shows_after=False))
    callbacks = importlib.import_module(_callbacks_module()).CallbackList
    for name in _OF_EPOCHS:
        _patch(callbacks, name, _callback_while_shown)
    for name in _OF_BATCHES:
        _patch(callbacks, name, _callback_while_shown_if_asked)
    for name, is_epoch in (("on_train_batch_end", False), ("on_epoch_end", True)):
        _patch(callbacks, name, functools.partial(ending_together, is_epoch=is_epoch, model_of=_model_of))


def _callbacks_module() -> str:
    if keras_in_use().is_keras3:
        return "keras.src.callbacks.callback_list"
    return f"{keras_in_use().engine.rsplit('.', 1)[0]}.callbacks"


def _patch(owner: Any, name: str, replace: Callable[[Callable], Callable]) -> None:
    stock = getattr(owner, name)
    setattr(owner, name, functools.wraps(stock)(replace(stock)))


def _shown(model: Any) -> contextlib.AbstractContextManager[None]:
    hook = hook_that_trains(model)
    return contextlib.nullcontext() if hook is None else hook.shown()


def _while_shown(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _shown(self):
            return stock(self, *args, **kwargs)

    return method


def _telling_statistics(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(self, *args, **kwargs)
        hook = hook_of_model(self)
        if hook is not None:
            hook.trains(lambda: _statistics(self))
        return result

    return method


def _training(*, shows_after: bool) -> Callable[[Callable], Callable]:
    def replace(stock: Callable) -> Callable:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            hook = hook_of_model(self)
            if hook is None:
                return stock(self, *args, **kwargs)
            hook.trains(lambda: _statistics(self))
            if shows_after:
                begin_to_train(self)
            hook.begin_training()
            result = stock(self, *args, **kwargs)
            if shows_after:
                hook.end_training()
            return result

        return method

    return replace


def _statistics(model: Any) -> list[Any]:
    """Returns the variables of a model that TensorFlow averages over replicas when they are read."""
    import tensorflow as tf

    found = [getattr(variable, "_value", variable) for variable in model.non_trainable_variables]
    return [
        variable
        for variable in found
        if getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and variable.aggregation == tf.VariableAggregation.MEAN
        and variable.dtype.is_floating
    ]


def _model_of(callbacks: Any) -> Any:
    return getattr(callbacks, "_model", None) or getattr(callbacks, "model", None)


def _callback_while_shown(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _shown(_model_of(self)):
            return stock(self, *args, **kwargs)

    return method


def _callback_while_shown_if_asked(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = _model_of(self)
        hook = hook_of_model(model)
        if hook is None or not _may_read_weights(self, stock.__name__, hook.program):
            return stock(self, *args, **kwargs)
        with _shown(model):
            return stock(self, *args, **kwargs)

    return method


def _may_read_weights(callbacks: Any, name: str, program: str) -> bool:
    """Returns whether a callback runs at each batch that may read weights; those of Keras and tfdist do not."""
    found = getattr(callbacks, "_tfdist_reads_at_batches", None)
    if found is None:
        found = {}
        callbacks._tfdist_reads_at_batches = found
    if name not in found:
        own = [
            one
            for one in callbacks.callbacks
            for method in (name, name.replace("_train", ""))
            if method in vars(one)
            or (not type(one).__module__.startswith(_KNOWN) and getattr(type(one), method) is not _stock_of(method))
        ]
        found[name] = bool(own)
        if own:
            get_logger().warning(
                "%s: %s runs at each batch and sees the average, which all replicas exchange for it; a callback of "
                "epochs costs less",
                program,
                type(own[0]).__name__,
            )
    return found[name]


def _stock_of(name: str) -> Any:
    import tensorflow as tf

    return getattr(tf.keras.callbacks.Callback, name)
