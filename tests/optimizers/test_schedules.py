"""Warmup, scaled rates, epochs as steps, and the recipe of all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import (
    LAMB,
    LARS,
    LinearWarmup,
    MomentumCorrectedSGD,
    create_optimizer,
    epochs_to_steps,
    scale_learning_rate,
    steps_per_epoch,
)


def rates(schedule, steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


class TestWarmup:
    def test_it_grows_to_the_whole_rate_and_the_first_step_moves(self):
        assert rates(LinearWarmup(0.8, 4), range(6)) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])

    def test_a_first_step_of_no_rate_can_be_asked_for(self):
        assert rates(LinearWarmup(0.8, 4, first_step_at_start=True), range(6)) == pytest.approx(
            [0.0, 0.2, 0.4, 0.6, 0.8, 0.8]
        )

    def test_it_may_start_at_a_share(self):
        assert rates(LinearWarmup(1.0, 4, start=0.5), range(4)) == pytest.approx([0.625, 0.75, 0.875, 1.0])

    def test_no_steps_are_no_warmup(self):
        assert rates(LinearWarmup(0.8, 0), [0, 1]) == pytest.approx([0.8, 0.8])
        assert rates(LinearWarmup(0.8, 0, first_step_at_start=True), [0]) == pytest.approx([0.8])

    def test_around_a_schedule_of_keras(self):
        inner = tf.keras.optimizers.schedules.CosineDecay(1.0, 100)
        steps = [0, 4, 9, 10, 50, 99]
        expected = [min(1, (k + 1) / 10) * (1 + math.cos(math.pi * k / 100)) / 2 for k in steps]
        assert rates(LinearWarmup(inner, 10), steps) == pytest.approx(expected, rel=1e-5, abs=1e-6)

    def test_around_a_schedule_of_whole_numbers(self):
        inner = tf.keras.optimizers.schedules.PiecewiseConstantDecay([10], [1, 2])
        assert rates(LinearWarmup(inner, 5), [3, 4, 11]) == pytest.approx([0.8, 1.0, 2.0])

    def test_it_is_written_down_and_read(self):
        made = LinearWarmup(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), 7, start=0.25)
        schedules = tf.keras.optimizers.schedules
        again = schedules.deserialize(schedules.serialize(made))
        assert isinstance(again, LinearWarmup)
        assert again.get_config() == made.get_config()
        assert rates(again, range(9)) == rates(made, range(9))

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((0.1, -1), {}, "expected warmup_steps to be 0 or more, received -1; give a whole number."),
            ((0.1, 1.5), {}, "expected warmup_steps to be 0 or more, received 1.5; give a whole number."),
            (
                (0.1, 5),
                {"start": 2},
                "expected start to be from 0 to 1, received 2; it is a share of the learning rate",
            ),
            ((lambda step: 0.1, 5), {}, "expected learning_rate to be a number or a schedule, received <function"),
            ((0.1, None), {}, "expected warmup_steps to be 0 or more, received None; give a whole number."),
            ((0.1, "many"), {}, "expected warmup_steps to be 0 or more, received 'many'; give a whole number."),
            ((0.1, float("inf")), {}, "expected warmup_steps to be 0 or more, received inf; give a whole number."),
            (("fast", 5), {}, "expected learning_rate to be a number or a schedule, received 'fast'"),
        ],
    )
    def test_refusals(self, arguments, options, message):
        with pytest.raises(ValueError, match="^" + message):
            LinearWarmup(*arguments, **options)

    @pytest.mark.parametrize("rate", [1, np.float32(1.0)])
    def test_numbers_of_any_kind(self, rate):
        assert rates(LinearWarmup(rate, 2), [0, 1]) == [0.5, 1.0]
        assert LinearWarmup(rate, 0)(0).dtype == tf.float32

    def test_an_optimizer_takes_it(self):
        weight = tf.Variable([1.0])
        optimizer = MomentumCorrectedSGD(LinearWarmup(0.5, 2), momentum=0.0)
        for expected in (0.75, 0.25):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
            assert weight.numpy().tolist() == [expected]


class TestScaling:
    def test_the_rules(self):
        assert scale_learning_rate(0.1, global_batch_size=1024) == pytest.approx(0.4)
        assert scale_learning_rate(0.1, global_batch_size=1024, rule="sqrt") == pytest.approx(0.2)
        assert scale_learning_rate(0.1, global_batch_size=64, base_batch_size=32) == pytest.approx(0.2)

    @pytest.mark.parametrize(
        ("rate", "options", "message"),
        [
            (0.1, {"global_batch_size": 0}, "expected global_batch_size to be at least 1, received 0"),
            (0.1, {"global_batch_size": 1, "base_batch_size": 0}, "expected base_batch_size to be at least 1"),
            (
                0.1,
                {"global_batch_size": 1, "rule": "cubic"},
                "expected rule to be one of linear, sqrt, received 'cubic'",
            ),
            (0.0, {"global_batch_size": 1}, "expected learning_rate to be above 0, received 0.0"),
        ],
    )
    def test_refusals(self, rate, options, message):
        with pytest.raises(ValueError, match="^" + message):
            scale_learning_rate(rate, **options)

    def test_steps(self):
        assert steps_per_epoch(100, global_batch_size=30) == 4
        assert steps_per_epoch(100, global_batch_size=30, drop_remainder=True) == 3
        assert epochs_to_steps(0.5, steps_per_epoch=7) == 4
        assert epochs_to_steps(0, steps_per_epoch=7) == 0
        # Five batches an epoch, two of which make a step.
        assert epochs_to_steps(20, steps_per_epoch=5 / 2) == 50

    @pytest.mark.parametrize(
        ("records", "options"),
        [
            (5, {"global_batch_size": 6, "drop_remainder": True}),
            (0, {"global_batch_size": 1}),
            (5, {"global_batch_size": 0}),
        ],
    )
    def test_no_step_is_refused(self, records, options):
        with pytest.raises(ValueError, match=r"^expected (records for at least one step|global_batch_size)"):
            steps_per_epoch(records, **options)

    def test_no_epochs_are_refused(self):
        with pytest.raises(ValueError, match=r"^expected epochs of 0 or more and steps_per_epoch above 0, received -1"):
            epochs_to_steps(-1, steps_per_epoch=5)
        with pytest.raises(
            ValueError, match=r"^expected epochs of 0 or more and steps_per_epoch above 0, received 1 and"
        ):
            epochs_to_steps(1, steps_per_epoch=0)


RECIPE = {"learning_rate": 0.1, "global_batch_size": 1024, "steps_per_epoch": 10, "epochs": 10}


class TestRecipe:
    @pytest.mark.parametrize(
        ("name", "kind", "rate"),
        [("sgd", MomentumCorrectedSGD, 0.4), ("lars", LARS, 0.4), ("lamb", LAMB, 0.2), ("adamw", None, 0.2)],
    )
    def test_each_optimizer_has_the_rule_of_its_authors(self, name, kind, rate):
        made = create_optimizer(name, weight_decay=0.01, exclude=["bias"] if kind else [], **RECIPE)
        assert isinstance(made, kind or tf.keras.optimizers.AdamW)
        assert float(np.asarray(made.learning_rate)) == pytest.approx(rate)

    def test_warmup_and_decay(self):
        made = create_optimizer("lamb", scaling="none", warmup_epochs=1.5, decay="linear", **RECIPE)
        schedule = made._learning_rate
        assert rates(schedule, [0, 14, 15, 50, 99, 100]) == pytest.approx(
            [0.1 / 15, 0.086, 0.085, 0.05, 0.001, 0.0], rel=1e-4, abs=1e-7
        )

    @pytest.mark.parametrize(
        ("decay", "halfway"), [("none", 0.1), ("linear", 0.05), ("cosine", 0.05), ("polynomial", 0.025)]
    )
    def test_decays(self, decay, halfway):
        made = create_optimizer("lars", scaling="none", warmup_epochs=1, decay=decay, **RECIPE)
        assert rates(made._learning_rate, [50]) == pytest.approx([halfway], rel=1e-4)

    def test_a_warmup_of_less_than_a_step_is_one(self):
        made = create_optimizer("lamb", scaling="none", warmup_epochs=0.01, **RECIPE)
        assert made._learning_rate.warmup_steps == 1

    def test_options_reach_the_optimizer(self):
        made = create_optimizer("lars", momentum=0.8, nesterov=True, clipnorm=3.0, **RECIPE)
        assert (made.momentum, made.nesterov, made.clipnorm) == (0.8, True, 3.0)

    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("ftrl", {}, "expected name to be one of adam, adamw, lamb, lars, rmsprop, sgd, tfa_lamb, received 'ftrl'"),
            ("lamb", {"scaling": "cubic"}, "expected scaling to be one of auto, linear, sqrt, none, received 'cubic'"),
            (
                "lamb",
                {"decay": "steps"},
                "expected decay to be one of none, linear, cosine, polynomial, received 'steps'",
            ),
            ("lamb", {"momentum": 0.5}, "expected no momentum for lamb, received 0.5; take sgd or lars."),
            ("lamb", {"exclude": "bias"}, "expected exclude to be a list of regular expressions, received 'bias'"),
            (
                "lamb",
                {"exclude_from_weight_decay": ["bias"]},
                "expected exclude for the exclusions of a recipe, received exclude_from_weight_decay; rename it.",
            ),
            ("adam", {"weight_decay": 0.1}, "expected no weight_decay for adam, received 0.1; take adamw or lamb."),
            ("adamw", {"exclude": ["bias"]}, r"expected no exclude for adamw, received \['bias'\]; take sgd, lars or"),
            ("adamw", {"weight_decay": -1.0}, "expected weight_decay to be 0 or more, received -1.0; give another."),
            (
                "lamb",
                {"warmup_epochs": 11},
                "expected epochs above 0 and warmup_epochs from 0 to 10, received 10 and 11",
            ),
        ],
    )
    def test_refusals(self, name, options, message):
        with pytest.raises(ValueError, match="^" + message):
            create_optimizer(name, **RECIPE, **options)

    def test_addons_missing_is_said(self):
        pytest.importorskip("keras", minversion="3", reason="the leg with TensorFlow Addons has it")
        with pytest.raises(ValueError, match=r"^expected TensorFlow Addons for tfa_lamb, received No module named"):
            create_optimizer("tfa_lamb", **RECIPE)
