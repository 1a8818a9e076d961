"""DPSGD and ChocoSGD: refused options, copies, one replica, what is sent, what readers see, and resumed trainings."""

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
from tests.averaging.test_seen_and_resumed import Reads, data, own
from tests.checkpoint.fits.interrupted import Interrupt, InterruptionError
from tfdist.allreduce import ErrorFeedback, PowerSGD, TopK
from tfdist.averaging import DPSGD, ChocoSGD, Mixing, ring
from tfdist.checkpoint import AutoResume
from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.optimizers.hooked import hook_of

keras = tf.keras
pytestmark = pytest.mark.usefixtures("four_cpus", "no_surroundings")
FULL = pytest.mark.full


def sgd(**options: Any) -> Any:
    return keras.optimizers.SGD(0.002, **options)


def choco(optimizer: Any, **options: Any) -> Any:
    return ChocoSGD(optimizer, **{"consensus_rate": 0.5, "compression": "topk:0.1", **options})


def make(strategy: Any, wrap: Any, **options: Any) -> Any:
    keras.utils.set_random_seed(5)
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [layers.Input((8,)), layers.Dense(150, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
        )
        model.compile(wrap(sgd(momentum=0.5), **options), "mse", metrics=["mae"])
    return model


def estimates_are_those_of_the_peers(model: Any, offsets: list[int]) -> None:
    """Checks that what a replica knows of a peer is what the peer knows of itself."""
    meeting: Any = hook_of(model.optimizer).meeting  # type: ignore[union-attr, attr-defined]
    replicas = model.distribute_strategy.num_replicas_in_sync
    for offset, peer in zip(offsets, meeting._peers, strict=True):
        for known, itself in zip(peer.variables, meeting._own.variables, strict=True):
            for replica, value in enumerate(known.local_values()):
                np.testing.assert_array_equal(value, itself.local_values()[(replica + offset) % replicas])


def fit(model: Any, *callbacks: Any, epochs: int = 2, **options: Any) -> dict[str, list[float]]:
    return model.fit(*data(), batch_size=16, epochs=epochs, verbose=0, callbacks=list(callbacks), **options).history


@pytest.mark.parametrize(
    ("wrap", "options", "message"),
    [
        (DPSGD, {"mixing": "star"}, "expected mixing to be one of ring, exponential, one_peer_exponential, complete"),
        (DPSGD, {"mixing": ring}, "expected mixing to be one of ring, exponential, one_peer_exponential, complete"),
        (DPSGD, {"seen": "all"}, "expected seen to be average or chief, received 'all'."),
        (choco, {"mixing": "star"}, "expected mixing to be one of ring"),
        (choco, {"consensus_rate": 0.0}, "expected consensus_rate to be above 0 and at most 1, received 0.0."),
        (choco, {"consensus_rate": 1.5}, "expected consensus_rate to be above 0 and at most 1, received 1.5."),
        (choco, {"consensus_rate": "all"}, "expected consensus_rate to be above 0 and at most 1, received 'all'."),
        (choco, {"compression": "none"}, "expected compression of ChocoSGD to be fp16, bf16, topk or threshold"),
        (choco, {"compression": "powersgd:2"}, "expected compression of ChocoSGD to be fp16, bf16, topk or threshold"),
        (choco, {"compression": PowerSGD()}, "expected compression of ChocoSGD to be fp16, bf16, topk or threshold"),
        (choco, {"compression": ErrorFeedback(TopK())}, "expected compression of ChocoSGD to be fp16, bf16, topk or"),
    ],
)
def test_options_out_of_range_are_refused(wrap: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        wrap(sgd(), **options)


def test_optimizers_that_need_all_replicas_in_every_step_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="expected an optimizer with use_ema=False for DPSGD"):
        DPSGD(sgd(use_ema=True))
    scaled = (
        keras.optimizers.LossScaleOptimizer if keras_in_use().is_keras3 else keras.mixed_precision.LossScaleOptimizer
    )
    with pytest.raises(ValueError, match="expected gradients without a loss scale for ChocoSGD"):
        choco(scaled(sgd()))
    with pytest.raises(ValueError, match="expected an optimizer that is not distributed yet"):
        DPSGD(choco(sgd()))


@pytest.mark.parametrize(
    ("wrap", "options", "message"),
    [
        (DPSGD, {"mixing": ring(3)}, "expected a mixing for 2 workers, as many as the strategy has replicas, received"),
        (
            choco,
            {"mixing": Mixing(2, (((0, 0.5), (1, 0.5)), ((0, 1.0),)))},
            "expected a mixing with one matrix for ChocoSGD, whose peers have to receive each difference, received one",
        ),
    ],
)
def test_mixings_that_do_not_fit_are_refused(strategy: Any, wrap: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(make(strategy, wrap, **options))


def test_a_strategy_that_compresses_gradients_is_refused() -> None:
    options = tfdist.AllReduceOptions(compression="fp16")
    strategy = tfdist.create_strategy("mirrored", devices=2, all_reduce=options)
    message = "expected a strategy without all_reduce.compression for DPSGD, received FP16"
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(make(strategy, DPSGD))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_have_the_same_options(duplicate: Any) -> None:
    meeting: Any = hook_of(duplicate(choco(sgd(), mixing="complete"))).meeting  # type: ignore[union-attr, attr-defined]
    assert (meeting.asked, meeting._compression, meeting._rate) == ("complete", TopK(0.1), 0.5)


@pytest.mark.parametrize("wrap", [pytest.param(DPSGD, marks=FULL), choco])
def test_one_replica_is_the_bare_optimizer(wrap: Any) -> None:
    strategy = tfdist.create_strategy("one_device")
    found = []
    for made in (wrap, lambda optimizer: optimizer):
        model = make(strategy, made)
        fit(model, shuffle=False)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@FULL
@pytest.mark.parametrize("wrap", [DPSGD, choco])
def test_readers_see_the_mean_and_training_goes_on_with_own_weights(strategy: Any, wrap: Any, tmp_path: Path) -> None:
    plain, read = make(strategy, wrap), make(strategy, wrap)
    fit(plain)
    reads = Reads()
    fit(read, reads, validation_data=data())
    read.evaluate(*data(), verbose=0)
    read.save(tmp_path / "model.keras")
    values = own(read)
    for one, other in zip(own(plain), values, strict=True):
        np.testing.assert_array_equal(one, other)
    assert all((one != other).any() for one, other in zip(values[:4:2], values[1:4:2], strict=True))
    for one, other in zip(reads.components[0][::2], reads.components[0][1::2], strict=True):
        np.testing.assert_array_equal(one, other)
    variables = [*hook_of(read.optimizer).meeting.weights, *hook_of(read.optimizer).meeting.others]  # type: ignore[union-attr, attr-defined]
    assert len(variables) == 8
    for number, variable in enumerate(variables):
        mean = (values[2 * number] + values[2 * number + 1]) / 2
        for one in strategy.experimental_local_results(variable):
            np.testing.assert_allclose(one.numpy(), mean, rtol=1e-6, atol=1e-7)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one, other in zip(loaded.get_weights(), read.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@FULL
def test_chief_shows_the_first_replica(strategy: Any) -> None:
    model = make(strategy, DPSGD, seen="chief")
    fit(model)
    for variable, first in zip(hook_of(model.optimizer).meeting.weights, own(model)[::2], strict=False):  # type: ignore[union-attr, attr-defined]
        for one in strategy.experimental_local_results(variable):
            np.testing.assert_array_equal(one.numpy(), first)


@pytest.mark.parametrize("wrap", [pytest.param(DPSGD, marks=FULL), choco])
def test_an_interrupted_fit_ends_with_the_same_bits(strategy: Any, tmp_path: Path, wrap: Any) -> None:
    expected = make(strategy, wrap)
    history = fit(expected)
    with pytest.raises(InterruptionError):
        fit(make(strategy, wrap), Interrupt(train=7), AutoResume(str(tmp_path), every_steps=2))
    found = make(strategy, wrap)
    assert fit(found, AutoResume(str(tmp_path), every_steps=2)) == history
    for one, other in zip(own(expected), own(found), strict=True):
        np.testing.assert_array_equal(one, other)


@FULL
@pytest.mark.parametrize("wrap", [DPSGD, choco])
def test_another_number_of_replicas_goes_on_from_the_mean(strategy: Any, tmp_path: Path, wrap: Any) -> None:
    with pytest.raises(InterruptionError):
        fit(make(strategy, wrap), Interrupt(train=7), AutoResume(str(tmp_path), every_steps=2))
    other = tfdist.create_strategy("mirrored", devices=4)
    model = make(other, wrap)
    fit(model, AutoResume(str(tmp_path), every_steps=2))
    values = own(model)
    assert (values[0] != values[1]).any()
    assert all(np.isfinite(value).all() for value in values)
    if wrap is choco:
        estimates_are_those_of_the_peers(model, [1, 3])


@FULL
def test_a_checkpoint_keeps_the_estimates_of_each_replica(strategy: Any, tmp_path: Path) -> None:
    model = make(strategy, choco)
    fit(model)
    hook: Any = hook_of(model.optimizer)
    wanted = [value for one in hook.meeting._state for value in one.local_values()]
    path = tf.train.Checkpoint(optimizer=model.optimizer).save(str(tmp_path / "checkpoint"))
    other = make(strategy, choco)
    fit(other, epochs=1)
    tf.train.Checkpoint(optimizer=other.optimizer).restore(path)
    found = [value for one in hook_of(other.optimizer).meeting._state for value in one.local_values()]  # type: ignore[union-attr, attr-defined]
    for one, value in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, value)
