"""Prepares a strategy of this process alone that has no options for all-reduce."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.keras_compat.registry import prepare_keras


def prepare_local(make: Callable[[], tf.distribute.Strategy], kind: str) -> tf.distribute.Strategy:
    """Makes a strategy and returns it, prepared for Keras.

    Args:
        make: calls the constructor of the strategy.
        kind: the name of the strategy in create_strategy.
    """
    return prepare_keras(make(), kind)
