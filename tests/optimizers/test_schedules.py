"""LinearWarmup, learning-rate scaling, and the conversion of epochs to steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.cases import rates
from tfdist.optimizers import (
    LinearWarmup,
    MomentumCorrectedSGD,
    epochs_to_steps,
    scale_learning_rate,
    steps_per_epoch,
)


class TestWarmup:
    def test_the_rate_ramps_up_to_the_full_rate_and_is_above_0_at_the_first_step(self):
        assert rates(LinearWarmup(0.8, 4), range(6)) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])

    def test_the_first_step_may_have_a_rate_of_0(self):
        assert rates(LinearWarmup(0.8, 4, first_step_at_start=True), range(6)) == pytest.approx(
            [0.0, 0.2, 0.4, 0.6, 0.8, 0.8]
        )

    def test_the_ramp_may_start_at_a_share_of_the_rate(self):
        assert rates(LinearWarmup(1.0, 4, start=0.5), range(4)) == pytest.approx([0.625, 0.75, 0.875, 1.0])

    def test_0_warmup_steps_give_the_full_rate_at_once(self):
        assert rates(LinearWarmup(0.8, 0), [0, 1]) == pytest.approx([0.8, 0.8])
        assert rates(LinearWarmup(0.8, 0, first_step_at_start=True), [0]) == pytest.approx([0.8])

    def test_a_schedule_of_keras_is_followed(self):
        inner = tf.keras.optimizers.schedules.CosineDecay(1.0, 100)
        steps = [0, 4, 9, 10, 50, 99]
        expected = [min(1, (k + 1) / 10) * (1 + math.cos(math.pi * k / 100)) / 2 for k in steps]
        assert rates(LinearWarmup(inner, 10), steps) == pytest.approx(expected, rel=1e-5, abs=1e-6)

    def test_a_schedule_of_integers_is_followed(self):
        inner = tf.keras.optimizers.schedules.PiecewiseConstantDecay([10], [1, 2])
        assert rates(LinearWarmup(inner, 5), [3, 4, 11]) == pytest.approx([0.8, 1.0, 2.0])

    def test_keras_serializes_and_deserializes_a_warmup(self):
        made = LinearWarmup(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5), 7, start=0.25)
        schedules = tf.keras.optimizers.schedules
        again = schedules.deserialize(schedules.serialize(made))
        assert isinstance(again, LinearWarmup)
        assert again.get_config() == made.get_config()
        assert rates(again, range(9)) == rates(made, range(9))

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((0.1, -1), {}, "expected warmup_steps to be a whole number, 0 or more, received -1."),
            ((0.1, 1.5), {}, "expected warmup_steps to be a whole number, 0 or more, received 1.5."),
            (
                (0.1, 5),
                {"start": 2},
                "expected start to be a share of the learning rate, from 0 to 1, received 2.",
            ),
            (
                (lambda step: 0.1, 5),
                {},
                "expected learning_rate to be a number or a LearningRateSchedule, received <fun",
            ),
            ((0.1, None), {}, "expected warmup_steps to be a whole number, 0 or more, received None."),
            ((0.1, "many"), {}, "expected warmup_steps to be a whole number, 0 or more, received 'many'."),
            ((0.1, float("inf")), {}, "expected warmup_steps to be a whole number, 0 or more, received inf."),
            (("fast", 5), {}, "expected learning_rate to be a number or a LearningRateSchedule, received 'fast'"),
        ],
    )
    def test_refusals(self, arguments, options, message):
        with pytest.raises(ValueError, match="^" + message):
            LinearWarmup(*arguments, **options)

    @pytest.mark.parametrize("rate", [1, np.float32(1.0)])
    def test_the_rate_may_be_any_kind_of_number(self, rate):
        assert rates(LinearWarmup(rate, 2), [0, 1]) == [0.5, 1.0]
        assert LinearWarmup(rate, 0)(0).dtype == tf.float32

    def test_an_optimizer_uses_the_rates_of_a_warmup(self):
        weight = tf.Variable([1.0])
        optimizer = MomentumCorrectedSGD(LinearWarmup(0.5, 2), momentum=0.0)
        for expected in (0.75, 0.25):
            optimizer.apply_gradients([(tf.constant([1.0]), weight)])
            assert weight.numpy().tolist() == [expected]


class TestScaling:
    def test_the_linear_and_the_sqrt_rule(self):
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

    def test_epochs_are_converted_to_steps(self):
        assert steps_per_epoch(100, global_batch_size=30) == 4
        assert steps_per_epoch(100, global_batch_size=30, drop_remainder=True) == 3
        assert epochs_to_steps(0.5, steps_per_epoch=7) == 4
        assert epochs_to_steps(0, steps_per_epoch=7) == 0
        # An epoch has five batches, and each step accumulates two.
        assert epochs_to_steps(20, steps_per_epoch=5 / 2) == 50

    @pytest.mark.parametrize(
        ("records", "options"),
        [
            (5, {"global_batch_size": 6, "drop_remainder": True}),
            (0, {"global_batch_size": 1}),
            (5, {"global_batch_size": 0}),
        ],
    )
    def test_too_few_records_for_a_step_are_refused(self, records, options):
        with pytest.raises(ValueError, match=r"^expected (records for at least one step|global_batch_size)"):
            steps_per_epoch(records, **options)

    def test_negative_epochs_and_no_steps_are_refused(self):
        with pytest.raises(ValueError, match=r"^expected epochs of 0 or more and steps_per_epoch above 0, received -1"):
            epochs_to_steps(-1, steps_per_epoch=5)
        with pytest.raises(
            ValueError, match=r"^expected epochs of 0 or more and steps_per_epoch above 0, received 1 and"
        ):
            epochs_to_steps(1, steps_per_epoch=0)
