"""Rounds that begin or go on with other options, other optimizers, frozen layers, and weights that are set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.averaging.test_seen_and_resumed import Reads, data, fit, make
from tests.averaging.test_weights_set import same, weights_of
from tfdist.averaging import BlockMomentum, ChocoSGD, ElasticAverage, LocalSGD, averaged
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.local_steps.own_variables import OwnVariables

keras = tf.keras
ELASTIC = ElasticAverage(rate=0.3)


def values(strategy: Any, variable: Any) -> list[np.ndarray]:
    """Returns the values of a variable on each replica, as they are."""
    return [one.numpy() for one in strategy.experimental_local_results(getattr(variable, "_value", variable))]


def small(strategy: Any, optimizer: Any) -> Any:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential([layers.Input((8,)), layers.Dense(3, "tanh"), layers.Dense(1)])
        model.compile(optimizer, "mse")
    return model


@pytest.mark.full
def test_readers_see_the_common_weights_until_an_elastic_training_makes_its_first_local_step(strategy: Any) -> None:
    plain = small(strategy, keras.optimizers.SGD(0.05))
    fit(plain, epochs=1, shuffle=False)
    model = small(strategy, LocalSGD(keras.optimizers.SGD(0.05), every=2, start_step=100, outer=ELASTIC))
    reads = Reads()
    fit(model, reads, epochs=1, shuffle=False)
    same(reads.seen[0], weights_of(plain))
    assert model.evaluate(*data(), verbose=0) == plain.evaluate(*data(), verbose=0)


class Steps:
    """Steps on one variable, whose gradient on replica i is i times a rate."""

    def __init__(self, strategy: Any, variable: Any = None, **options: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.variable = tf.Variable([1.0, 1.0]) if variable is None else variable
            self.optimizer = LocalSGD(keras.optimizers.SGD(0.1), average=["weights"], **options)
            self.optimizer.build([self.variable])
        self.rate = tf.Variable(0.0)
        self.step = tf.function(lambda: strategy.run(self._step), autograph=False)
        self.checkpoint = tf.train.Checkpoint(variable=self.variable, optimizer=self.optimizer)

    def _step(self) -> None:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = self.rate * tf.cast(number, tf.float32) * tf.ones([2])
        self.optimizer.apply_gradients([(gradient, self.variable)])

    def train(self, steps: int, rate: float) -> list[np.ndarray]:
        self.rate.assign(rate)
        for _ in range(steps):
            self.step()
        return values(self.strategy, self.variable)


NESTEROV = {"outer": "nesterov"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, NESTEROV),
        ({**NESTEROV, "start_step": 100}, {**NESTEROV, "start_step": 2}),
        pytest.param(NESTEROV, {**NESTEROV, "start_step": 5}, marks=pytest.mark.full),
    ],
    ids=["another rule", "an earlier start", "a later start"],
)
def test_a_checkpoint_goes_on_with_other_options(strategy: Any, before: dict, after: dict, tmp_path: Path) -> None:
    first = Steps(strategy, every=2, **before)
    first.train(3, 0.0)
    path = first.checkpoint.save(str(tmp_path / "checkpoint"))
    second = Steps(strategy, every=2, **after)
    second.checkpoint.restore(path).expect_partial()
    # Without gradients nothing moves.
    same(second.train(5, 0.0), [np.ones(2, "float32")] * 2)


def test_a_new_optimizer_begins_with_the_average_of_what_the_former_one_left(strategy: Any) -> None:
    first = Steps(strategy, every=1000)
    one, other = first.train(1, 1.0)
    assert (one != other).all()
    second = Steps(strategy, first.variable, every=2, outer="nesterov")
    for found in second.train(4, 0.0):
        np.testing.assert_allclose(found, (one + other) / 2, rtol=0, atol=1e-7)


def test_the_average_is_shown_again_after_another_optimizer_has_trained(strategy: Any) -> None:
    first = Steps(strategy, every=1000)
    first.train(1, 1.0)
    second = Steps(strategy, first.variable, every=1000)
    second.train(1, 1.0)
    one, other = first.train(1, 1.0)
    with averaged(first.optimizer):
        for found in values(strategy, first.variable):
            np.testing.assert_allclose(found, (one + other) / 2, rtol=0, atol=1e-7)


def test_the_training_of_a_gan_leaves_the_replicas_of_its_discriminator_apart(strategy: Any) -> None:
    layers = keras.layers
    keras.utils.set_random_seed(5)
    with strategy.scope():
        generator = keras.Sequential([layers.Input((8,)), layers.Dense(8)])
        discriminator = keras.Sequential([layers.Input((8,)), layers.Dense(1)])
        discriminator.compile(LocalSGD(keras.optimizers.SGD(0.05), every=1000, average=["weights"]), "mse")
        discriminator.trainable = False
        gan = keras.Sequential([layers.Input((8,)), generator, discriminator])
        gan.compile(LocalSGD(keras.optimizers.SGD(0.05), every=1000, average=["weights"]), "mse")
    x, y = data()
    for _ in range(2):
        discriminator.trainable = True
        discriminator.train_on_batch(x, y)
        before = values(strategy, discriminator.weights[0])
        discriminator.trainable = False
        gan.train_on_batch(x, y)
        same(values(strategy, discriminator.weights[0]), before)
    assert (before[0] != before[1]).any()
    # Readers of the generator, which is not compiled, see its average.
    kernels = values(strategy, generator.weights[0])
    assert (kernels[0] != kernels[1]).any()
    np.testing.assert_allclose(generator.get_weights()[0], np.mean(kernels, axis=0), rtol=0, atol=1e-7)


def test_a_model_may_be_compiled_twice_before_it_is_built(strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        for _ in range(2):
            model.compile(LocalSGD(keras.optimizers.SGD(0.05), every=2, average=["weights"]), "mse")
    fit(model, epochs=1)


def test_an_attribute_of_a_model_may_be_a_variable_of_each_replica(strategy: Any) -> None:
    model = small(strategy, LocalSGD(keras.optimizers.SGD(0.05), every=2, average=["weights"]))
    with strategy.scope():
        # It has no common value that could be read.
        model.own_count = tf.Variable(0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ)
    fit(model, epochs=1)


def test_a_model_that_is_compiled_with_a_plain_optimizer_goes_on_with_the_average(strategy: Any) -> None:
    model = small(strategy, LocalSGD(keras.optimizers.SGD(0.05), every=1000))
    x, y = data()
    model.train_on_batch(x, y)
    means = [np.mean(values(strategy, one), axis=0) for one in model.weights]
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.train_on_batch(x, y)
    for variable, mean in zip(model.weights, means, strict=True):
        for found in values(strategy, variable):
            np.testing.assert_allclose(found, mean, rtol=0, atol=1e-7)


def test_weights_that_are_set_between_single_batches_stay(strategy: Any) -> None:
    model = small(strategy, LocalSGD(keras.optimizers.SGD(0.05), every=4, outer="nesterov", average=["weights"]))
    x, y = data()
    model.train_on_batch(x, y)
    model.optimizer.learning_rate = 0.0
    wanted = [np.ones_like(one) for one in weights_of(model)]
    model.set_weights(wanted)
    for _ in range(4):
        model.train_on_batch(x, y)
    same(weights_of(model), wanted)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"outer": "nesterov"}, id="nesterov", marks=pytest.mark.full),
        pytest.param({"outer": BlockMomentum()}, id="block momentum", marks=pytest.mark.full),
        pytest.param({"outer": "nesterov", "overlap": True}, id="overlap"),
    ],
)
def test_meetings_leave_a_frozen_layer_alone(strategy: Any, options: dict[str, Any]) -> None:
    # A meeting after two steps, and six steps in an epoch.
    options = {"every": 2, "average": ["weights"], **options}
    model = small(strategy, LocalSGD(keras.optimizers.SGD(0.05), **options))
    fit(model, epochs=1)
    frozen, trained = model.layers[0].kernel, model.layers[1].kernel
    model.layers[0].trainable = False
    with strategy.scope():
        model.compile(model.optimizer, "mse")
    assert id(getattr(frozen, "_value", frozen)) in OwnVariables([model]).differing()
    if "overlap" in options:
        # The round that was on its way ends.
        fit(model, epochs=1)
    before = [one.numpy() for one in (frozen, trained)]
    fit(model, epochs=2)
    np.testing.assert_array_equal(frozen.numpy(), before[0])
    assert (trained.numpy() != before[1]).any()


def test_estimates_of_choco_are_right_if_some_of_the_weights_are_set(strategy: Any) -> None:
    optimizer = ChocoSGD(keras.optimizers.SGD(0.05), compression="topk:0.1", consensus_rate=0.5)
    model = small(strategy, optimizer)
    fit(model, epochs=1)
    model.optimizer.learning_rate = 0.0
    model.layers[1].set_weights([np.ones((3, 1), "float32"), np.zeros(1, "float32")])
    fit(model, epochs=10)
    meeting = model.optimizer._tfdist_hook.meeting
    with model.optimizer._tfdist_hook.own():
        for peer, itself in zip(meeting._peers[0].variables, meeting._own.variables, strict=True):
            (_, of_second), (of_peer, _) = itself.local_values(), peer.local_values()
            np.testing.assert_allclose(of_peer, of_second, rtol=0, atol=1e-6)
        for variable in meeting.weights:
            one, other = values(strategy, variable)
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.full
def test_a_callback_that_stores_variables_at_batches_sees_the_average(
    strategy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(make(strategy), keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=2), epochs=1)
    # That of Keras 3 calls save_weights, which shows the average by itself.
    is_told = "BackupAndRestore runs at each batch and sees the average" in caplog.text
    assert is_told == (not keras_in_use().is_keras3)


class TwoOptimizers(keras.Model):
    """Two layers with an optimizer each, which its train_step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]

    def compile(self, **options: Any) -> None:
        super().compile(**options)
        self.first = LocalSGD(keras.optimizers.SGD(0.05), every=4, outer="nesterov", average=["weights"])
        self.second = LocalSGD(keras.optimizers.SGD(0.05), every=4, average=["weights"])

    def call(self, x: Any) -> Any:
        return self.parts[1](self.parts[0](x))

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        for part, optimizer in zip(self.parts, (self.first, self.second), strict=True):
            variables = part.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def test_all_optimizers_of_a_model_are_shown_and_kept(strategy: Any) -> None:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = TwoOptimizers()
        model.compile()
        model(data()[0][:1])
    seen: list[list[np.ndarray]] = []

    class Sees(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.extend(values(strategy, one) for one in self.model.trainable_variables)

    # Six steps in an epoch: two after a meeting.
    fit(model, Sees(), epochs=1)
    for one, other in seen:
        np.testing.assert_array_equal(one, other)
    assert {id(getattr(one, "_value", one)) for one in model.trainable_variables} <= OwnVariables([model]).differing()
    with OwnVariables([model]).training():
        kernels = [values(strategy, part.kernel) for part in model.parts]
    assert all((one != other).any() for one, other in kernels)
    with averaged(model):
        for part in model.parts:
            same(*([one] for one in values(strategy, part.kernel)))
