"""LocalSGD with the optimizers of Keras and tfdist, against models that train alone on one device and are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.every_optimizer import BATCH, OPTIMIZERS, STEPS, architecture, cases, compute_in, rows
from tfdist.averaging import LocalSGD
from tfdist.keras_compat import keras_in_use

keras = tf.keras
REPLICAS, EVERY = 2, 4
# The numbers of Keras 2's Nadam depend on how often its update is traced.
NAMES = [name for name in OPTIMIZERS if name != "Nadam" or keras_in_use().is_keras3]


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    compute_in("float64")
    yield
    compute_in("float32")


def mean_of(values: list[Any]) -> np.ndarray:
    return np.mean([np.asarray(tf.convert_to_tensor(value)) for value in values], axis=0)


def trained_alone_and_averaged(make: Callable[[], Any], start: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the mean of the weights of models that train on one device, and are averaged with their slots."""
    models = []
    for _ in range(REPLICAS):
        models.append(architecture())
        models[-1].compile(make(), "mse")
        models[-1].optimizer.build(models[-1].trainable_variables)
        models[-1].set_weights(start)
    x, y = rows()
    part = BATCH // REPLICAS
    for step in range(STEPS):
        for replica, model in enumerate(models):
            begin = step * BATCH + replica * part
            model.train_on_batch(x[begin : begin + part], y[begin : begin + part])
        if (step + 1) % EVERY == 0:
            held = [[*model.weights, *_slots(model.optimizer)] for model in models]
            for variables in zip(*held, strict=True):
                mean = mean_of(list(variables))
                for variable in variables:
                    variable.assign(mean)
    return [mean_of(list(values)) for values in zip(*(model.get_weights() for model in models), strict=True)]


def _slots(optimizer: Any) -> list[Any]:
    return [one for one in optimizer.variables if tf.as_dtype(one.dtype).is_floating]


@pytest.mark.parametrize("name", cases(NAMES))
def test_replicas_train_as_models_that_train_alone_and_are_averaged(strategy: Any, name: str) -> None:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = architecture()
        model.compile(LocalSGD(OPTIMIZERS[name](), every=EVERY), "mse")
    start = model.get_weights()
    model.fit(*rows(), batch_size=BATCH, shuffle=False, verbose=0)
    expected = trained_alone_and_averaged(OPTIMIZERS[name], start)
    assert max(np.abs(one - other).max() for one, other in zip(expected, start, strict=True)) > 1e-3
    for found, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10)
