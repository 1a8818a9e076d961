"""Interrupted fits whose variables are made in the first step, as Keras does on one device outside of a scope."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import tfdist
from tests.checkpoint.fits.interrupted import BATCH, EPOCHS, Interrupt, InterruptionError, check, data, fit, results
from tfdist.checkpoint import AutoResume, fits

keras = tf.keras


@pytest.fixture
def no_strategy():
    """What a program has that enters no scope."""
    return tf.distribute.get_strategy()


@pytest.mark.parametrize(
    ("every_steps", "compiled"),
    [
        (3, {}),
        # After seven steps an epoch is complete.
        pytest.param(7, {}, marks=pytest.mark.full),
        pytest.param(3, {"run_eagerly": True}, marks=pytest.mark.full),
        pytest.param(3, {"jit_compile": True}, marks=pytest.mark.full),
        # The last execution of an epoch has one step.
        (3, {"steps_per_execution": 2}),
    ],
)
def test_an_interruption_without_a_scope(no_strategy, every_steps, compiled, tmp_path):
    resume = {"every_steps": every_steps}
    check(no_strategy, tmp_path / "run", at=[{"train": 9}, {"train": 9}], compiled=compiled, resume=resume)


def test_a_finished_training_without_a_scope_goes_on_for_more_epochs(no_strategy, tmp_path):
    _, expected = fit(no_strategy)
    for epochs in (2, EPOCHS):
        _, found = fit(no_strategy, AutoResume(str(tmp_path / "run")), epochs=epochs)
        # A new process begins with the first fit again.
        fits._ended.clear()
    assert found == expected


class TwoOptimizers(keras.Model):
    """A model that trains its layers with optimizers of its own, as adversarial networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(8)]) for _ in range(2)]
        self.mean = keras.metrics.Mean(name="mean")

    def compile(self) -> None:
        super().compile()
        self.first, self.second = (keras.optimizers.Adam(rate) for rate in (0.01, 0.02))

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.parts[1](self.parts[0](x))

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        for part, optimizer in zip(self.parts, (self.first, self.second), strict=True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            variables = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean.update_state(loss)
        return {"mean": self.mean.result()}


@pytest.mark.parametrize("name", [None, "one_device"])
def test_optimizers_of_a_train_step_of_ones_own(name, no_strategy, tmp_path):
    strategy = no_strategy if name is None else tfdist.create_strategy(name)

    def train(*callbacks: Any) -> dict[str, Any]:
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = TwoOptimizers()
            model.compile()
            model.build((None, 8))
        x, y = data()
        history = model.fit(x, y, epochs=2, batch_size=BATCH, verbose=0, callbacks=list(callbacks))
        model.optimizer = model.first
        return results(model, history)

    expected, directory = train(), str(tmp_path / "run")
    with pytest.raises(InterruptionError):
        train(Interrupt(train=9), AutoResume(directory, every_steps=3))
    assert train(AutoResume(directory, every_steps=3)) == expected
