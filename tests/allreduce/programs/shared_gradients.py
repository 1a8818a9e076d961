"""Gradients that two replicas give to an optimizer: a tensor object that both share, or a tensor of each replica."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.allreduce.programs.replicas import own
from tfdist.keras_compat.version import keras, keras_in_use
from tfdist.optimizers import DistributedOptimizer

STEPS = 3
BEFORE = [[1.0, 2.0], [3.0, 4.0]]
GRADIENT = [[1.0, 1.0], [2.0, 2.0]]


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"own": _on_both(strategy, _accumulating, _own_gradient, _sum_of_own_gradients)}
    if keras_in_use().is_keras3:
        # Keras 2 has no gradient_accumulation_steps, and its sum refuses a tensor that replicas share.
        shared = tf.constant(GRADIENT)
        found["shared"] = _on_both(strategy, _accumulating, lambda: shared, lambda: shared)
        found["shared, update in each step"] = _on_both(strategy, _plain, lambda: shared, lambda: shared)
        found["restored"] = _restored(strategy, folder)
    return {"all": [found]}


def _plain() -> Any:
    return keras().optimizers.SGD(1.0)


def _accumulating() -> Any:
    """Returns an optimizer that makes an update after STEPS steps."""
    if keras_in_use().is_keras3:
        return keras().optimizers.SGD(1.0, gradient_accumulation_steps=STEPS)
    return DistributedOptimizer(_plain(), backward_passes_per_step=STEPS)


def _own_gradient() -> tf.Tensor:
    """Returns the gradient of a replica: G on the first replica, 2G on the second."""
    return own(lambda replica: (replica + 1) * np.array(GRADIENT, "float32"))


def _sum_of_own_gradients() -> tf.Tensor:
    return 3.0 * tf.constant(GRADIENT)


def _on_both(
    strategy: tf.distribute.Strategy,
    optimizer: Callable[[], Any],
    gradient: Callable[[], tf.Tensor],
    gradient_of_one_device: Callable[[], tf.Tensor],
) -> dict[str, Any]:
    """Returns the values of a variable after each step, on the replicas of a strategy and on one device."""
    return {
        "eager": _trained(strategy, optimizer, gradient),
        "traced": _trained(strategy, optimizer, gradient, traced=True),
        "one device": _trained(None, optimizer, gradient_of_one_device),
    }


def _trained(
    strategy: tf.distribute.Strategy | None,
    optimizer: Callable[[], Any],
    gradient: Callable[[], tf.Tensor],
    *,
    traced: bool = False,
) -> list[Any]:
    with strategy.scope() if strategy else contextlib.nullcontext():
        variable, made = tf.Variable(BEFORE), optimizer()

    def step() -> None:
        made.apply_gradients([(gradient(), variable)])

    run_step = step if strategy is None else functools.partial(strategy.run, step)
    if traced:
        run_step = tf.function(run_step, autograph=False)
    values = []
    for _ in range(STEPS):
        run_step()
        values.append(variable.numpy().tolist())
    return values


def _restored(strategy: tf.distribute.Strategy, folder: Path) -> list[Any]:
    """Returns a variable after STEPS steps, the last step with an optimizer restored from a checkpoint."""

    def job() -> tuple[tf.Variable, Any, tf.train.Checkpoint]:
        with strategy.scope():
            variable, optimizer = tf.Variable(BEFORE), _accumulating()
            optimizer.build([variable])
        return variable, optimizer, tf.train.Checkpoint(variable=variable, optimizer=optimizer)

    def step(variable: tf.Variable, optimizer: Any) -> None:
        strategy.run(lambda: optimizer.apply_gradients([(_own_gradient(), variable)]))

    variable, optimizer, checkpoint = job()
    for _ in range(STEPS - 1):
        step(variable, optimizer)
    path = checkpoint.write(str(folder / "between_updates"))
    variable, optimizer, checkpoint = job()
    checkpoint.read(path).assert_consumed()
    step(variable, optimizer)
    return variable.numpy().tolist()
