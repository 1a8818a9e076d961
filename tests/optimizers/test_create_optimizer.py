"""create_optimizer: learning-rate scaling, warmup, decay, and the options that each optimizer honours or refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.cases import rates
from tfdist._optimizer_names import OPTIMIZERS
from tfdist.keras_compat import keras_in_use
from tfdist.optimizers import LAMB, LARS, MomentumCorrectedSGD, create_optimizer
from tfdist.optimizers.per_update import PerUpdate

RATE = {"learning_rate": 0.1}
SCALED = {**RATE, "learning_rate_scaling": "auto", "base_batch_size": 256, "global_batch_size": 1024}
SCHEDULED = {**RATE, "steps_per_epoch": 10, "epochs": 10}
# test_against_addons.py tests tfa_lamb, which needs TensorFlow Addons.
HERE = [name for name in OPTIMIZERS if name != "tfa_lamb"]


def rate_of(optimizer):
    return float(np.asarray(optimizer.learning_rate))


def stepped(optimizer, gradients, start):
    weight = tf.Variable(start, name="kernel")
    for gradient in gradients:
        optimizer.apply_gradients([(tf.constant(gradient), weight)])
    return weight.numpy()


class TestScaling:
    @pytest.mark.parametrize("name", HERE)
    def test_the_learning_rate_is_not_scaled_unless_asked_for(self, name, caplog):
        with caplog.at_level("INFO", logger="tfdist"):
            made = create_optimizer(name, learning_rate=1e-3, global_batch_size=64)
        assert rate_of(made) == pytest.approx(1e-3)
        assert not caplog.records

    @pytest.mark.parametrize(
        ("name", "kind", "rate"),
        [
            ("sgd", tf.keras.optimizers.SGD, 0.4),
            ("momentum_corrected_sgd", MomentumCorrectedSGD, 0.4),
            ("lars", LARS, 0.4),
            ("lamb", LAMB, 0.2),
            ("adam", tf.keras.optimizers.Adam, 0.2),
            ("adamw", tf.keras.optimizers.AdamW, 0.2),
            ("rmsprop", tf.keras.optimizers.RMSprop, 0.2),
        ],
    )
    def test_auto_follows_the_authors_of_each_optimizer(self, name, kind, rate):
        made = create_optimizer(name, **SCALED)
        assert type(made) is kind
        assert rate_of(made) == pytest.approx(rate)

    @pytest.mark.parametrize(("scaling", "rate"), [("linear", 0.4), ("sqrt", 0.2)])
    def test_a_rule_holds_for_every_optimizer(self, scaling, rate):
        for name in HERE:
            made = create_optimizer(name, **{**SCALED, "learning_rate_scaling": scaling})
            assert rate_of(made) == pytest.approx(rate)

    def test_the_scaled_rate_is_logged(self, caplog):
        with caplog.at_level("INFO", logger="tfdist"):
            create_optimizer("lamb", **SCALED)
        assert [line.getMessage() for line in caplog.records if line.name == "tfdist"] == [
            "learning rate scaled from 0.1, for a batch of 256, to 0.2, for a batch of 1024 (sqrt)"
        ]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"learning_rate_scaling": "linear", "base_batch_size": 256},
                "expected global_batch_size and base_batch_size with learning_rate_scaling='linear', received None and "
                "256; give both, or leave learning_rate_scaling out.",
            ),
            (
                {"learning_rate_scaling": "auto", "global_batch_size": 1024},
                "expected global_batch_size and base_batch_size with learning_rate_scaling='auto', received 1024 and "
                "None; give both, or leave learning_rate_scaling out.",
            ),
            (
                {"base_batch_size": 256, "global_batch_size": 1024},
                "expected no base_batch_size with learning_rate_scaling='none', received 256; choose a scaling, or "
                "leave base_batch_size out.",
            ),
            (
                {"learning_rate_scaling": "cubic"},
                "expected learning_rate_scaling to be one of none, linear, sqrt, auto, received 'cubic'.",
            ),
        ],
    )
    def test_refusals(self, options, message):
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            create_optimizer("lamb", **RATE, **options)


class TestSchedules:
    def test_the_rate_warms_up_and_then_decays(self):
        made = create_optimizer("lamb", warmup_epochs=1.5, learning_rate_decay="linear", **SCHEDULED)
        assert rates(made._learning_rate, [0, 14, 15, 50, 99, 100]) == pytest.approx(
            [0.1 / 15, 0.086, 0.085, 0.05, 0.001, 0.0], rel=1e-4, abs=1e-7
        )

    @pytest.mark.parametrize(
        ("decay", "halfway"), [("none", 0.1), ("linear", 0.05), ("cosine", 0.05), ("polynomial", 0.025)]
    )
    def test_each_decay_has_its_rate_halfway(self, decay, halfway):
        made = create_optimizer("lars", warmup_epochs=1, learning_rate_decay=decay, **SCHEDULED)
        assert rates(made._learning_rate, [50]) == pytest.approx([halfway], rel=1e-4)

    def test_a_warmup_of_less_than_a_step_takes_one_step(self):
        made = create_optimizer("lamb", warmup_epochs=0.01, **SCHEDULED)
        assert made._learning_rate.warmup_steps == 1

    def test_scaling_comes_before_warmup_and_decay(self):
        made = create_optimizer("lamb", warmup_epochs=1, learning_rate_decay="linear", **{**SCHEDULED, **SCALED})
        assert rates(made._learning_rate, [0, 50]) == pytest.approx([0.02, 0.1], rel=1e-4)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {**RATE, "learning_rate_decay": "cosine", "epochs": 10},
                "expected steps_per_epoch and epochs with warmup_epochs=0 and learning_rate_decay='cosine', received "
                "None and 10; give both.",
            ),
            (
                {**RATE, "warmup_epochs": 2, "steps_per_epoch": 10},
                "expected steps_per_epoch and epochs with warmup_epochs=2 and learning_rate_decay='none', received 10 "
                "and None; give both.",
            ),
            (
                {**SCHEDULED, "warmup_epochs": 11},
                "expected epochs above 0 and warmup_epochs from 0 to 10, received 10 and 11.",
            ),
            (
                {**SCHEDULED, "learning_rate_decay": "steps"},
                "expected learning_rate_decay to be one of none, linear, cosine, polynomial, received 'steps'.",
            ),
        ],
    )
    def test_refusals(self, options, message):
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            create_optimizer("lamb", **options)


class TestSgd:
    """The name sgd means the SGD of Keras. SGD with momentum correction is momentum_corrected_sgd."""

    def test_sgd_makes_the_steps_of_keras_sgd(self):
        """The rate falls to 0, so the optimizers differ: the velocity of the SGD of Keras is a sum with old rates."""
        gradients, options = ([1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [1.0, 1.0]), {"momentum": 0.9, **RATE}
        options |= {"learning_rate_decay": "linear", "steps_per_epoch": 4, "epochs": 1}
        schedule = tf.keras.optimizers.schedules.PolynomialDecay(0.1, 4, end_learning_rate=0.0)
        expected = stepped(tf.keras.optimizers.SGD(schedule, momentum=0.9), gradients, [1.0, 1.0])
        assert np.array_equal(stepped(create_optimizer("sgd", **options), gradients, [1.0, 1.0]), expected)
        corrected = stepped(create_optimizer("momentum_corrected_sgd", **options), gradients, [1.0, 1.0])
        assert not np.allclose(corrected, expected, rtol=1e-3)

    def test_each_has_the_default_momentum_of_its_class(self):
        assert create_optimizer("sgd", **RATE).momentum == tf.keras.optimizers.SGD().momentum == 0.0
        assert create_optimizer("momentum_corrected_sgd", **RATE).momentum == MomentumCorrectedSGD().momentum == 0.9

    def test_weight_decay_of_sgd_is_a_separate_update(self):
        """If the decay were added to the gradient, momentum would apply it again in later steps."""
        found = stepped(create_optimizer("sgd", weight_decay=0.5, momentum=0.9, **RATE), [[0.0], [0.0]], [1.0])
        assert found == pytest.approx([(1 - 0.1 * 0.5) ** 2])
        corrected = create_optimizer("momentum_corrected_sgd", weight_decay=0.5, momentum=0.9, **RATE)
        assert stepped(corrected, [[0.0], [0.0]], [1.0]) == pytest.approx([0.95 - 0.1 * (0.9 * 0.5 + 0.5 * 0.95)])


class TestOptions:
    def test_options_reach_the_optimizer(self):
        made = create_optimizer("lars", momentum=0.8, nesterov=True, clipnorm=3.0, **RATE)
        assert (made.momentum, made.nesterov, made.clipnorm) == (0.8, True, 3.0)

    @pytest.mark.parametrize(("given", "decay"), [(None, 0.004), (0.0, 0.0), (0.1, 0.1)])
    def test_the_weight_decay_of_adamw_is_that_of_keras_by_default(self, given, decay):
        assert create_optimizer("adamw", weight_decay=given, **RATE).weight_decay == decay

    @pytest.mark.parametrize("name", ["momentum_corrected_sgd", "lars", "lamb"])
    def test_exclusions_reach_the_optimizer(self, name):
        made = create_optimizer(name, weight_decay=0.01, exclude_from_weight_decay=("bias",), **RATE)
        assert made.get_config()["exclude_from_weight_decay"] == ["bias"]

    @pytest.mark.parametrize("name", HERE)
    def test_a_decay_of_0_and_no_exclusions_suit_every_optimizer(self, name):
        create_optimizer(name, weight_decay=0.0, exclude_from_weight_decay=[], **RATE)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            (
                "ftrl",
                {},
                "expected name to be one of adam, adamw, lamb, lars, momentum_corrected_sgd, rmsprop, sgd, tfa_lamb, "
                "received 'ftrl'.",
            ),
            (
                "lamb",
                {"momentum": 0.5},
                "expected no momentum for lamb, received 0.5; leave it out, or use sgd, momentum_corrected_sgd or "
                "lars.",
            ),
            (
                "lamb",
                {"exclude_from_weight_decay": "bias"},
                "expected exclude_from_weight_decay to be a list of regular expressions, received 'bias'; write "
                "['bias'].",
            ),
            (
                "adam",
                {"weight_decay": 0.1},
                "expected no weight_decay for adam, received 0.1; leave it out, or use sgd, momentum_corrected_sgd, "
                "adamw, lars, lamb or tfa_lamb.",
            ),
            *(
                (
                    name,
                    {"exclude_from_weight_decay": ["bias"]},
                    f"expected no exclude_from_weight_decay for {name}, received ['bias']; leave it out, or use "
                    "momentum_corrected_sgd, lars, lamb or tfa_lamb.",
                )
                for name in ("sgd", "adamw")
            ),
            ("sgd", {"eeta": 0.1}, "expected no eeta for sgd, received 0.1; leave it out, or use lars."),
            ("adamw", {"weight_decay": -1.0}, "expected weight_decay to be 0 or more, received -1.0."),
        ],
    )
    def test_refusals(self, name, options, message):
        with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
            create_optimizer(name, **RATE, **options)

    def test_tfa_lamb_without_addons_is_refused(self):
        pytest.importorskip("keras", minversion="3", reason="the environment with Keras 2.15 has TensorFlow Addons")
        with pytest.raises(ValueError, match=r"^expected TensorFlow Addons for tfa_lamb, received No module named"):
            create_optimizer("tfa_lamb", **RATE)


def test_a_schedule_of_updates_needs_a_batch_for_each():
    with pytest.raises(ValueError, match=r"^expected gradient_accumulation_steps to be 1 or more, received -2\.$"):
        PerUpdate(0.1, -2)


def test_accumulated_batches_follow_the_schedule_by_updates():
    if not keras_in_use().is_keras3:
        pytest.skip("gradient_accumulation_steps is an option of Keras 3")
    options = {"learning_rate": 1.0, "learning_rate_decay": "linear", "steps_per_epoch": 4, "epochs": 2}
    optimizer = create_optimizer("sgd", gradient_accumulation_steps=4, **options)
    optimizer = type(optimizer).from_config(optimizer.get_config())
    variable, values = tf.Variable([0.0]), [0.0]
    for _ in range(32):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
        values.append(float(variable.numpy()[0]))
    assert values[::4] == pytest.approx(np.cumsum([0, *(-rate / 8 for rate in range(8, 0, -1))]))
