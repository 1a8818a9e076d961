"""The small trainings of `tfdist test` that are compared with one device: the same function runs on both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.test.checks import CLIPPING, DISTRIBUTED, NORMALIZATION, UNEVEN

SEED = 1
_COLUMNS, _CLASSES = 6, 3


def use_float64() -> None:
    """Makes Keras compute in float64, in which rounding hides no wrong number."""
    tf.keras.backend.set_floatx("float64")
    tf.keras.mixed_precision.set_global_policy("float64")
    tf.keras.utils.set_random_seed(SEED)


def data(workers: int, *, batches: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns rows, classes and the size of a global batch, whose last one has an odd number of rows.

    Args:
        workers: number of workers.
        batches: number of whole batches before the last one.

    Example:
        >>> x, y, size = data(2, batches=2)
        >>> x.shape, size, len(x) % size
        ((41, 6), 16, 9)
    """
    size = 8 * workers
    rows = batches * size + 4 * workers + 1
    generator = np.random.default_rng(SEED)
    x = generator.normal(size=(rows, _COLUMNS))
    return x, (np.abs(x[:, 0] * 2) % _CLASSES).astype("int64"), size


def model_of(*, normalizes: bool = False) -> Any:
    """Returns a model that is not compiled, with the same weights in each call.

    Args:
        normalizes: whether it has BatchNormalization and Dropout.
    """
    layers = tf.keras.layers
    start = [tf.keras.initializers.RandomNormal(stddev=0.5, seed=SEED + i) for i in range(2)]
    between = [layers.BatchNormalization(name="normalization"), layers.Dropout(0.0)] if normalizes else []
    return tf.keras.Sequential(
        [
            layers.Input((_COLUMNS,)),
            layers.Dense(8, "tanh", kernel_initializer=start[0], name="hidden"),
            *between,
            layers.Dense(_CLASSES, kernel_initializer=start[1], name="classes"),
        ]
    )


def loss_of() -> Any:
    """Returns the loss of the model."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _trained(strategy: Any, workers: int, optimizer: Callable[[], Any], *, normalizes: bool = False) -> dict[str, Any]:
    """Trains for two epochs, and returns the weights, the metrics and the evaluation."""
    x, y, size = data(workers, batches=2)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = model_of(normalizes=normalizes)
        model.compile(optimizer(), loss_of(), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=size, epochs=2, shuffle=False, verbose=0)
    numbers = dict(model.evaluate(x, y, batch_size=size, verbose=0, return_dict=True))
    found = {f"{name} of fit": np.asarray(values) for name, values in history.history.items()}
    found |= {f"{name} of evaluate": np.asarray(value) for name, value in numbers.items()}
    # The names of Keras 3 have no layer, so that the index says which weight it is.
    names = [f"weight {i} ({weight.name})" for i, weight in enumerate(model.weights)]
    return found | dict(zip(names, model.get_weights(), strict=True))


def uneven_last_batch(strategy: Any, workers: int) -> dict[str, Any]:
    """Trains with Adam."""
    return _trained(strategy, workers, lambda: tf.keras.optimizers.Adam(0.05))


def batch_normalization(strategy: Any, workers: int) -> dict[str, Any]:
    """Trains with BatchNormalization, which the strategy synchronizes, and Dropout that drops nothing."""
    return _trained(strategy, workers, lambda: tf.keras.optimizers.SGD(0.1), normalizes=True)


def clipping(strategy: Any, workers: int) -> dict[str, Any]:
    """Trains with gradients that are clipped by the norm of all of them. SGD shows their size, unlike Adam."""
    return _trained(strategy, workers, lambda: tf.keras.optimizers.SGD(0.5, global_clipnorm=0.05))


def distributed_optimizer(strategy: Any, workers: int) -> dict[str, Any]:
    """Trains with DistributedOptimizer, and with the plain optimizer on one device."""

    def optimizer() -> Any:
        plain = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        if strategy is None:
            return plain
        from tfdist.optimizers import DistributedOptimizer

        return DistributedOptimizer(plain)

    return _trained(strategy, workers, optimizer)


PROGRAMS: dict[str, Callable[[Any, int], dict[str, Any]]] = {
    UNEVEN: uneven_last_batch,
    NORMALIZATION: batch_normalization,
    CLIPPING: clipping,
    DISTRIBUTED: distributed_optimizer,
}
"""The training of each check that is compared with one device."""
