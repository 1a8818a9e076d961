"""Optimizers, variables and models that several tests of the optimizers use."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import LAMB, LARS, MomentumCorrectedSGD

BOTH = pytest.mark.parametrize("kind", [LAMB, LARS])
ALL = pytest.mark.parametrize("kind", [LAMB, LARS, MomentumCorrectedSGD])


def variables(**values):
    return [tf.Variable(value, name=name) for name, value in values.items()]


def stepped(optimizer, held, gradients):
    optimizer.apply_gradients(zip(gradients, held, strict=True))
    return [variable.numpy() for variable in held]


def rows(count=32):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 4)).astype("float32"), rng.normal(size=(count, 1)).astype("float32")


def compiled(optimizer):
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Input((4,)), tf.keras.layers.Dense(3, name="hidden"), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential(layers)
    model.compile(optimizer, "mse")
    return model


def rates(schedule, steps):
    """Returns the learning rates of a schedule at some steps."""
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]
