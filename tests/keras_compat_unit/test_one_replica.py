"""A strategy with one replica trains as one device does, with options that Keras decides on at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_compat import keras_in_use

pytestmark = pytest.mark.usefixtures("float64")
keras = tf.keras
RANDOM = np.random.default_rng(5)
X, Y = RANDOM.normal(size=(29, 4)), RANDOM.normal(size=(29, 2))


def averaged() -> Any:
    return keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)


def accumulated() -> Any:
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=2, global_clipnorm=0.1)


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(accumulated(), initial_scale=64.0, dynamic_growth_steps=3)


def trained(optimizer: Any) -> list[Any]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    losses = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [*model.get_weights(), np.array(losses)]


@pytest.mark.parametrize("name", ["mirrored", "multi_worker_mirrored", "central_storage"])
@pytest.mark.parametrize("optimizer", [averaged, accumulated, scaled])
def test_averages_and_accumulated_gradients_are_those_of_one_device(name: str, optimizer: Callable[[], Any]) -> None:
    if optimizer is not averaged and not keras_in_use().is_keras3:
        pytest.skip("gradient_accumulation_steps is an option of Keras 3")
    expected = trained(optimizer())
    options = {} if name == "multi_worker_mirrored" else {"devices": 1}
    strategy = tfdist.create_strategy(name, **options)
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        found = trained(optimizer())
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-10)
