"""The optimizers of Keras and tfdist, for tests of what all of them have to do, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import LAMB, LARS

keras = tf.keras
optimizers = keras.optimizers
BATCH, STEPS = 8, 10
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD, clipped": lambda: optimizers.SGD(0.05, momentum=0.5, clipnorm=0.25),
    "Adam, amsgrad": lambda: optimizers.Adam(0.02, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.02, weight_decay=0.1),
    "Nadam": lambda: optimizers.Nadam(0.02),
    "Adamax": lambda: optimizers.Adamax(0.02),
    "RMSprop": lambda: optimizers.RMSprop(0.02, momentum=0.5, centered=True),
    "Adagrad": lambda: optimizers.Adagrad(0.05),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Adafactor": lambda: optimizers.Adafactor(0.02),
    "Ftrl": lambda: optimizers.Ftrl(0.1, l2_regularization_strength=0.01),
    "Lion": lambda: optimizers.Lion(0.01),
    "LAMB": lambda: LAMB(0.05, weight_decay=0.01),
    "LARS": lambda: LARS(1.0, weight_decay=0.01),
}

# Tests of all the others are `full`: these have a state for all variables, states of other shapes, none, or clip.
IN_CI = ("SGD, clipped", "Nadam", "Adafactor", "LAMB")


def cases(names: Iterable[str]) -> list[Any]:
    """Returns the names as parameters of a test, of which CI takes a few."""
    return [name if name in IN_CI else pytest.param(name, marks=pytest.mark.full) for name in names]


def compute_in(dtype: str) -> None:
    """Makes new layers and variables have a type."""
    keras.backend.set_floatx(dtype)
    # Keras keeps the policy that it made from the former type.
    keras.mixed_precision.set_global_policy(dtype)


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of STEPS batches."""
    x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 4))
    return x, np.sin(x.sum(axis=1, keepdims=True))


def architecture() -> Any:
    """Returns a model of four variables."""
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
