"""LocalSGD: refused options, copies, compression, statistics, one replica, and callbacks of batches."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.averaging import program
from tfdist.averaging import Average, BlockMomentum, ElasticAverage, LocalSGD, Nesterov, averaged
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.optimizers.hooked import hook_of

keras = tf.keras
pytestmark = pytest.mark.usefixtures("four_cpus", "no_surroundings")


def sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(0.05, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "expected every to be a whole number, at least 1, or a function of the number of the step"),
        ({"every": True}, "expected every to be a whole number, at least 1, or a function of the number of the step"),
        ({"every": 2.5}, "expected every to be a whole number, at least 1, or a function of the number of the step"),
        ({"start_step": -1}, "expected start_step to be a whole number, at least 0, received -1."),
        ({"outer": "mean"}, "expected outer to be one of average, block_momentum, nesterov"),
        ({"outer": 0.5}, "expected outer to be one of average, block_momentum, nesterov"),
        ({"outer": Nesterov}, "expected outer to be one of average, block_momentum, nesterov"),
        (
            {"all_reduce": "fp16"},
            "expected all_reduce to be a value of AllReduceOptions or None, received 'fp16'",
        ),
        ({"average": "weights"}, "expected average to be a list out of weights, slots, statistics"),
        ({"average": ["slots"]}, "expected average to be a list out of weights, slots, statistics"),
        ({"seen": "all"}, "expected seen to be average or chief, received 'all'."),
        ({"overlap": True}, "expected average without slots for LocalSGD with overlap=True, received weights, slots"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalSGD(sgd(), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nesterov(rate=0), "expected the rate of Nesterov to be above 0, received 0."),
        (lambda: Nesterov(momentum=1.0), "expected the momentum of Nesterov to be at least 0 and below 1"),
        (lambda: BlockMomentum(rate=-1), "expected the rate of BlockMomentum to be above 0, received -1."),
        (lambda: BlockMomentum(momentum=-0.1), "expected the momentum of BlockMomentum to be at least 0 and below 1"),
        (lambda: ElasticAverage(rate=1.0), "expected the rate of ElasticAverage to be above 0 and below 1"),
    ],
)
def test_outer_rules_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_optimizers_that_need_all_replicas_in_every_step_are_refused() -> None:
    with pytest.raises(ValueError, match="expected an optimizer of "):
        LocalSGD("sgd")
    with pytest.raises(ValueError, match="expected an optimizer with use_ema=False for LocalSGD"):
        LocalSGD(sgd(use_ema=True))
    scaled = (
        keras.optimizers.LossScaleOptimizer if keras_in_use().is_keras3 else keras.mixed_precision.LossScaleOptimizer
    )
    with pytest.raises(ValueError, match="expected gradients without a loss scale for LocalSGD"):
        LocalSGD(scaled(sgd()))
    if keras_in_use().is_keras3:
        with pytest.raises(ValueError, match="expected an optimizer with gradient_accumulation_steps=None"):
            LocalSGD(sgd(gradient_accumulation_steps=2))
    else:
        with pytest.raises(ValueError, match="received the legacy optimizer SGD"):
            LocalSGD(keras.optimizers.legacy.SGD(0.05))
    with pytest.raises(ValueError, match="expected an optimizer that is not distributed yet"):
        LocalSGD(LocalSGD(sgd()))


def test_constraints_are_refused(strategy: Any) -> None:
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(1.0))
        model = keras.Sequential([keras.layers.Input((2,)), layer])
        model.compile(LocalSGD(sgd()), "mse")
    with pytest.raises(ValueError, match="expected variables without constraints for LocalSGD"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=4, verbose=0)


@pytest.mark.parametrize(
    ("every", "error", "message"),
    [
        (lambda step: 2.5, ValueError, "expected every to return a whole number, received float32 of shape ()"),
        (lambda step: [2, 3], ValueError, r"expected every to return a whole number, received int32 of shape (2,)"),
        (lambda step: 2 - step, tf.errors.InvalidArgumentError, "expected every to return at least 1"),
    ],
)
def test_a_schedule_that_returns_no_whole_number_is_refused(
    strategy: Any, every: Any, error: type[Exception], message: str
) -> None:
    model = model_of(strategy, every=every)
    with pytest.raises(error, match=re.escape(message)):
        model.fit(*rows(), batch_size=8, verbose=0)


def test_a_schedule_may_begin_after_the_synchronous_steps(strategy: Any) -> None:
    model = model_of(strategy, start_step=3, every=lambda step: step - 2)
    model.fit(*rows(), batch_size=8, verbose=0)
    assert int(tf.convert_to_tensor(model.optimizer.iterations)) == 4


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_the_same_options(duplicate: Any) -> None:
    made = duplicate(LocalSGD(sgd(), every=5, start_step=2, outer=Nesterov(rate=0.5), average=["weights"]))
    hook = hook_of(made)
    assert hook is not None
    assert (hook.meetings.every, hook.meetings.start_step) == (5, 2)
    assert (hook.meeting.outer, hook.meeting.parts) == (Nesterov(rate=0.5), ("weights",))


def model_of(strategy: Any, *, normalized: bool = False, **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Input((4,)), keras.layers.Dense(8, "tanh")]
        layers += [keras.layers.BatchNormalization()] if normalized else []
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(LocalSGD(sgd(), **options), "mse")
    return model


def rows(count: int = 32) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def test_the_average_of_replicas_that_never_differ_is_refused() -> None:
    for subject in (sgd(), keras.Sequential(), 3):
        with (
            pytest.raises(ValueError, match="expected an optimizer of LocalSGD, DPSGD or ChocoSGD, or a model"),
            averaged(subject),
        ):
            pass


@pytest.mark.full
def test_statistics_are_averaged_at_a_meeting(strategy: Any) -> None:
    for average, are_equal in ((["weights", "statistics"], True), (["weights"], False)):
        model = model_of(strategy, normalized=True, every=2, average=average)
        model.fit(*rows(), batch_size=8, epochs=1, verbose=0)
        statistics = [v for v in model.non_trainable_variables if "moving" in v.name]
        assert statistics
        for variable in statistics:
            found = strategy.experimental_local_results(getattr(variable, "_value", variable))
            assert np.array_equal(found[0].numpy(), found[1].numpy()) == are_equal


@pytest.mark.full
def test_changes_are_sent_compressed(strategy: Any) -> None:
    plain = model_of(strategy, every=2, average=["weights"])
    plain.fit(*rows(), batch_size=8, epochs=4, verbose=0, shuffle=False)
    options = tfdist.AllReduceOptions(compression="fp16")
    packed = model_of(strategy, every=2, average=["weights"], all_reduce=options)
    packed.fit(*rows(), batch_size=8, epochs=4, verbose=0, shuffle=False)
    assert hook_of(packed.optimizer).meeting.path.compresses
    traffic = hook_of(packed.optimizer).meeting.path.traffic()
    assert traffic.steps == 8
    assert traffic.sent < 0.55 * traffic.uncompressed
    differences = [np.abs(a - b).max() for a, b in zip(plain.get_weights(), packed.get_weights(), strict=True)]
    assert 0 < max(differences) < 1e-3


def test_synchronous_steps_are_compressed_as_the_strategy_says(four_cpus: None, no_surroundings: None) -> None:
    options = tfdist.AllReduceOptions(compression=program.COMPRESSIONS["topk of all"])
    strategy = tfdist.create_strategy("mirrored", devices=2, all_reduce=options)
    found = []
    for is_local in (False, True):
        model = model_of(strategy, every=2)
        with strategy.scope():
            made = sgd(momentum=0.5)
            model.compile(LocalSGD(made, every=4, start_step=1000) if is_local else made, "mse")
        model.fit(*rows(), batch_size=8, epochs=3, verbose=0, shuffle=False)
        found.append(model)
    for one, other in zip(*(model.get_weights() for model in found), strict=True):
        np.testing.assert_array_equal(one, other)
    local, plain = hook_of(found[1].optimizer)._synchronous.traffic(), found[0].optimizer._tfdist_hook.path.traffic()
    assert local == plain
    assert local.sent < 0.6 * local.uncompressed


def test_variables_that_are_trained_later_are_refused(strategy: Any) -> None:
    with strategy.scope():
        variables = [tf.Variable(1.0), tf.Variable(1.0)]
        optimizer = LocalSGD(sgd(), every=2)
        optimizer.build(variables[:1])

    def step(trained: list[Any]) -> None:
        def replica() -> None:
            hook = hook_of(optimizer)
            assert hook is not None
            hook.run([tf.constant(1.0)] * len(trained), trained, None, lambda gradients: None)

        tf.function(lambda: strategy.run(replica))()

    step(variables[:1])
    with pytest.raises(ValueError, match="expected the variables of the first step for LocalSGD, received "):
        step(variables)


def test_one_replica_with_an_average_is_the_bare_optimizer() -> None:
    strategy = tfdist.create_strategy("one_device")
    model = model_of(strategy, every=3)
    model.fit(*rows(), batch_size=8, epochs=2, verbose=0, shuffle=False)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        bare = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        bare.compile(sgd(), "mse")
    bare.fit(*rows(), batch_size=8, epochs=2, verbose=0, shuffle=False)
    for one, other in zip(model.get_weights(), bare.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("method", ["on_train_batch_end", pytest.param("on_batch_end", marks=pytest.mark.full)])
def test_a_callback_of_batches_sees_the_average(strategy: Any, method: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[list[np.ndarray]] = []
    model = model_of(strategy, every=1000)

    def read(self: Any, batch: int, logs: Any = None) -> None:
        kernel = hook_of(self.model.optimizer).meeting.weights[0]
        seen.append([one.numpy() for one in strategy.experimental_local_results(kernel)])

    Reads = type("Reads", (keras.callbacks.Callback,), {method: read})
    model.fit(*rows(), batch_size=8, epochs=1, verbose=0, callbacks=[Reads()])
    assert len(seen) == 4
    for first, second in seen:
        np.testing.assert_array_equal(first, second)
    assert "Reads runs at each batch and sees the average" in caplog.text


def test_several_steps_in_one_call_are_those_of_single_calls(strategy: Any) -> None:
    found = []
    for steps in (1, 5):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            model.compile(LocalSGD(sgd(), every=3), "mse", steps_per_execution=steps)
        model.fit(*rows(56), batch_size=8, epochs=2, verbose=0, shuffle=False)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_stand_for_rules() -> None:
    rules = {"average": Average(), "block_momentum": BlockMomentum(), "nesterov": Nesterov()}
    for name, rule in rules.items():
        assert hook_of(LocalSGD(sgd(), outer=name)).meeting.outer == rule


def test_other_strategies_are_refused() -> None:
    strategy = tfdist.create_strategy("central_storage", devices=2)
    with pytest.raises(ValueError, match="expected one of the strategies one_device, mirrored and multi_worker_mirror"):
        program.train(strategy, epochs=1)


def test_a_loss_scale_around_the_optimizer_is_refused_in_its_first_step(strategy: Any) -> None:
    scaled = (
        keras.optimizers.LossScaleOptimizer if keras_in_use().is_keras3 else keras.mixed_precision.LossScaleOptimizer
    )
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(scaled(LocalSGD(sgd())), "mse")
    with pytest.raises(ValueError, match="expected gradients without a loss scale for LocalSGD, received a LossScale"):
        model.fit(*rows(), batch_size=8, verbose=0)


def test_a_file_without_the_local_steps_is_told_once(
    strategy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(strategy, every=2)
    model.fit(*rows(), batch_size=8, verbose=0)
    for _ in range(2):
        model.save(tmp_path / "model.keras")
    told = [record.getMessage() for record in caplog.records if "is saved without" in record.getMessage()]
    assert told == ["the optimizer is saved without LocalSGD; wrap the optimizer of a model that is loaded again"]
    assert hook_of(keras.models.load_model(tmp_path / "model.keras").optimizer) is None
