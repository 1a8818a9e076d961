"""Lets `fit`, `evaluate` and `predict` be called again after a step that failed in one process of the native transport.

A notebook goes on after an error, such as an index that an embedding does not have, and after its stop button.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import trainer_class

_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
_patched: list[type] = []


def call_after_errors(renew: Callable[[Any], None]) -> None:
    """Patches the models of the Keras in use, once.

    Args:
        renew: called with the strategy of a model after TensorFlow has ended one of its steps with an error, and
            after an interrupt.
    """
    trainer = trainer_class()
    if trainer in _patched:
        return
    _patched.append(trainer)
    for name in _METHODS:
        setattr(trainer, name, _renewing(getattr(trainer, name), renew))


def _renewing(stock: Callable, renew: Callable[[Any], None]) -> Callable:
    @functools.wraps(stock)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(self, *args, **kwargs)
        except (tf.errors.OpError, KeyboardInterrupt):
            renew(self.distribute_strategy)
            raise

    return method
