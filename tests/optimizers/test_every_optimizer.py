"""Replicas train the same model as one device, with the optimizers of Keras and tfdist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.optimizers.every_optimizer import BATCH, OPTIMIZERS, architecture, cases, compute_in, rows
from tfdist.optimizers import DistributedOptimizer

keras = tf.keras


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    compute_in("float64")
    yield
    compute_in("float32")


def trained(strategy: Any, optimizer: Any) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = architecture()
        model.compile(optimizer(), "mse")
    model.fit(*rows(), batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    return [np.asarray(value) for value in model.get_weights()]


@pytest.mark.parametrize("is_distributed", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", cases(OPTIMIZERS))
def test_two_replicas_train_the_model_of_one_device(
    four_cpus: None, no_surroundings: None, name: str, is_distributed: bool
) -> None:
    make = OPTIMIZERS[name]
    expected = trained(tf.distribute.get_strategy(), make)
    mirrored = tfdist.create_strategy("mirrored", devices=2)
    found = trained(mirrored, (lambda: DistributedOptimizer(make())) if is_distributed else make)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
