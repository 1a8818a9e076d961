"""Shows evaluation, saving and callbacks the common weights of replicas that train on their own.

evaluate, predict, saving, and the callbacks of epochs run while all replicas have the values that the hook of the
optimizer shows; afterwards each replica gets its own values back. When fit ends, the shown values stay until training
goes on, because a program may read them directly.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tfdist._log import get_logger
from tfdist.allreduce.update_hook import UpdateHook
from tfdist.keras_compat.local_steps.stop_together import begin_to_train, ending_together
from tfdist.keras_compat.optimizers.hooked import (
    forget,
    hook_of_local_steps,
    hooks_of_model,
    hooks_that_train,
    hooks_that_trained,
    remember_trained,
)
from tfdist.keras_compat.version import keras_in_use, trainer_class

_READING = ("evaluate", "predict", "predict_on_batch", "test_on_batch")
_SAVING = ("save", "save_weights", "export", "get_weights", "get_state_tree")
_SETTING = ("set_weights", "load_weights", "set_state_tree")
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
    for name in (*_SAVING, *_SETTING):
        if hasattr(model, name):
            _patch(model, name, _while_shown)
    # In Keras 3 a base class has `compile`; a model whose class has another one is not compiled when it is loaded.
    _patch(next(one for one in trainer.__mro__ if "compile" in vars(one)), "compile", _compiling)
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


@contextlib.contextmanager
def _shown(model: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for hook in hooks_that_train(model):
            stack.enter_context(hook.shown())
        yield


def _while_shown(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _shown(self):
            return stock(self, *args, **kwargs)

    return method


def _compiling(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # The former optimizer may not live until the next training.
        former = hooks_of_model(self)
        result = stock(self, *args, **kwargs)
        hooks = hooks_of_model(self)
        _leave([hook for hook in former if hook not in hooks])
        for hook in hooks:
            hook.trains(lambda: _statistics(self))
            # It may have been left before.
            remember_trained(hook, hook.trained)
        return result

    return method


def _leave(hooks: Sequence[UpdateHook]) -> None:
    """Leaves the values that everybody sees on all replicas, because another optimizer goes on with them."""
    for hook in hooks:
        hook.end_training()
    if hooks:
        forget(hooks)


def _training(*, shows_after: bool) -> Callable[[Callable], Callable]:
    def replace(stock: Callable) -> Callable:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            hooks = hooks_of_model(self)
            if getattr(self, "built", False):
                # Not those of frozen layers: the optimizer of a GAN leaves the discriminator to another one.
                _leave([hook for hook in hooks_that_trained(self.trainable_variables) if hook not in hooks])
            if not hooks:
                return stock(self, *args, **kwargs)
            if shows_after:
                begin_to_train(self)
            for hook in reversed(hooks):
                hook.trains(lambda: _statistics(self))
                hook.begin_training()
            result = stock(self, *args, **kwargs)
            for hook in hooks if shows_after else ():
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
        hook = hook_of_local_steps(model)
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
            or (name.endswith("_end") and _stores_variables(one))
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


def _stores_variables(callback: Any) -> bool:
    """Returns whether a callback of Keras reads the variables themselves at batches, and not with `save`."""
    reads = ("OrbaxCheckpoint",) if keras_in_use().is_keras3 else ("BackupAndRestore",)
    return type(callback).__name__ in reads and getattr(callback, "save_freq", "epoch") != "epoch"


def _stock_of(name: str) -> Any:
    import tensorflow as tf

    return getattr(tf.keras.callbacks.Callback, name)
