"""Weights are overwritten with their moving average at the same steps as on one device, also with accumulation."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from tfdist.keras_compat.version import keras, keras_in_use
from tfdist.strategies import mirrored

pytestmark = pytest.mark.skipif(not keras_in_use().is_keras3, reason="Keras 2 has no gradient_accumulation_steps")


def weights_after_training(scope, accumulation, frequency):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(75, 6)), rng.normal(size=(75, 1))
    with scope:
        layers = [keras().layers.Input((6,)), keras().layers.Dense(1, kernel_initializer="ones", dtype="float64")]
        model = keras().Sequential(layers)
        optimizer = keras().optimizers.SGD(
            0.05, gradient_accumulation_steps=accumulation, use_ema=True, ema_overwrite_frequency=frequency
        )
        model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(one) for one in model.get_weights()])


@pytest.mark.parametrize(("accumulation", "frequency"), [(2, 2), (2, 3)])
def test_weights_are_those_of_one_device(accumulation, frequency, four_cpus):
    expected = weights_after_training(contextlib.nullcontext(), accumulation, frequency)
    found = weights_after_training(mirrored(devices=2).scope(), accumulation, frequency)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    # An average that is never written back would hide the step at which it is.
    assert not np.allclose(expected, weights_after_training(contextlib.nullcontext(), accumulation, 1000), atol=1e-6)
