"""Loops of one's own, without a compiled model: what files and readers see, statistics, and resumed loops."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.averaging.test_seen_and_resumed import data
from tfdist.averaging import LocalSGD, Nesterov, averaged
from tfdist.checkpoint import ResumableLoop

keras = tf.keras
BATCH = 8


class Loop:
    """A model and an optimizer whose steps are in a loop."""

    def __init__(self, strategy: Any, *, compiled: bool = False, **options: Any) -> None:
        keras.utils.set_random_seed(5)
        self.strategy = strategy
        with strategy.scope():
            layers = keras.layers
            self.model = keras.Sequential(
                [layers.Input((8,)), layers.Dense(6, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
            )
            self.optimizer = LocalSGD(keras.optimizers.SGD(0.05, momentum=0.5), **{"every": 4, **options})
            if compiled:
                self.model.compile(self.optimizer, "mse")
            self.optimizer.build(self.model.trainable_variables)
        self.step = tf.function(lambda batch: strategy.run(self._step, args=(batch,)))

    def _step(self, batch: Any) -> None:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self.model(x, training=True) - y) ** 2) / BATCH
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def batches(self) -> Any:
        return self.strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(data()).batch(BATCH))

    def train(self, steps: int) -> None:
        for batch in itertools.islice(self.batches(), steps):
            self.step(batch)

    def values(self, variables: Any = None) -> list[list[np.ndarray]]:
        """Returns the values of variables on each replica, as they are."""
        held = [getattr(one, "_value", one) for one in variables or self.model.variables]
        return [[one.numpy() for one in self.strategy.experimental_local_results(variable)] for variable in held]


def means(values: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.mean([one.astype(float) for one in replicas], axis=0) for replicas in values]


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.full)])
def test_files_and_readers_see_the_average(strategy: Any, compiled: bool, tmp_path: Path) -> None:
    loop = Loop(strategy, compiled=compiled)
    loop.train(6)
    trained = loop.values()
    kernels = loop.values(loop.model.trainable_variables)
    assert all((one != other).any() for one, other in kernels[:1])
    for one, mean in zip(loop.model.get_weights(), means(trained), strict=True):
        np.testing.assert_allclose(one, mean, rtol=0, atol=1e-6)
    loop.model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    with averaged(loop.model):
        for one, other in zip(loaded.get_weights(), loop.model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    # Training goes on with the own values.
    for own, before in zip(loop.values(), trained, strict=True):
        np.testing.assert_array_equal(own, before)


def test_a_model_may_be_compiled_after_and_while_the_average_is_read(strategy: Any) -> None:
    loop = Loop(strategy)
    loop.train(6)
    before = loop.values()
    with averaged(loop.model):
        pass
    with averaged(loop.model), strategy.scope():
        loop.model.compile(loop.optimizer, "mse")
    loop.model.evaluate(*data(), batch_size=BATCH, verbose=0)
    for own, other in zip(loop.values(), before, strict=True):
        np.testing.assert_array_equal(own, other)


def test_statistics_of_a_compiled_model_are_averaged_at_a_meeting(strategy: Any) -> None:
    loop = Loop(strategy, compiled=True)
    loop.train(4)
    statistics = loop.values(loop.model.non_trainable_variables)
    assert statistics
    for first, second in statistics:
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"outer": Nesterov()}, marks=pytest.mark.full)], ids=["average", "nesterov"]
)
def test_a_resumed_loop_ends_with_the_same_bits(strategy: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    def run(folder: Path, *, ends_after: int | None = None) -> Loop:
        loop = Loop(strategy, **options)
        objects = {"model": loop.model, "optimizer": loop.optimizer}
        with ResumableLoop(str(folder), objects, strategy=strategy, every_steps=3) as resumable:
            for batch in resumable.batches(loop.batches(), epochs=2):
                loop.step(batch)
                resumable.step()
                if resumable.steps == ends_after:
                    raise KeyboardInterrupt
        return loop

    expected = run(tmp_path / "at once")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "twice", ends_after=13)
    found = run(tmp_path / "twice")
    for variables in ("trainable_variables", "non_trainable_variables"):
        own = [loop.values(getattr(loop.model, variables)) for loop in (expected, found)]
        for one, other in zip(*own, strict=True):
            np.testing.assert_array_equal(one, other)
