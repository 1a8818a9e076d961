"""scaled_rate: multiplies the learning rate of an optimizer by a tensor, while one update is traced.

Scaled gradients would not do: Adam and other optimizers make the same step for a gradient and a multiple of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.version import keras_in_use


@contextlib.contextmanager
def scaled_rate(optimizer: Any, factor: tf.Tensor | None) -> Iterator[None]:
    """A context in which an optimizer has its learning rate times a factor, also for decoupled weight decay.

    Args:
        optimizer: an optimizer of the Keras in use.
        factor: a scalar tensor; None changes nothing.
    """
    if factor is None:
        yield
        return
    if keras_in_use().is_keras3:
        name, stock = "_get_current_learning_rate", optimizer._get_current_learning_rate
        value: Any = lambda: _scaled(stock(), factor)  # noqa: E731
    else:
        # Updates the variable from which `learning_rate` reads the present rate of a schedule.
        optimizer._compute_current_learning_rate()
        name, value = "_learning_rate", _scaled(optimizer.learning_rate, factor)
    own = vars(optimizer).get(name)
    # object.__setattr__, because Keras tracks attributes that are set in the usual manner.
    object.__setattr__(optimizer, name, value)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(optimizer, name)
        else:
            object.__setattr__(optimizer, name, own)


def _scaled(rate: Any, factor: tf.Tensor) -> tf.Tensor:
    rate = tf.convert_to_tensor(rate)
    return rate * tf.cast(factor, rate.dtype)
