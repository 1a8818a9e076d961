"""A loss that is not finite is reported once in each fit, with its step and its replica."""

from __future__ import annotations

import re

import pytest

from tfdist.keras_compat.losses.not_finite import Finding, describe


@pytest.mark.parametrize(
    ("findings", "worker", "sentence"),
    [
        ([Finding(17, 3, "nan")], 1, "the loss of replica 3 (worker 1) is not finite (nan) in step 17"),
        ([Finding(2, 0, "inf")], None, "the loss of replica 0 is not finite (inf) in step 2"),
        (
            [Finding(3, 0, "nan"), Finding(2, 1, "nan"), Finding(2, 0, "-inf"), Finding(2, 2, "nan")],
            None,
            "the losses of replicas 0, 1 and 2 are not finite (-inf, nan) in step 2",
        ),
    ],
)
def test_the_report_names_the_earliest_step_and_its_replicas(findings, worker, sentence):
    assert describe(findings, worker=worker).startswith(f"{sentence}; ")


PROGRAM = """
import logging, sys
import numpy as np
from tfdist import create_strategy

strategy = create_strategy("mirrored", devices=2)
import tensorflow as tf

keras = tf.keras
logging.getLogger("tfdist").addHandler(logging.StreamHandler(sys.stdout))


class OfItsOwn(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x)))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"own": loss}


class InAFunction(keras.Model):
    @tf.function
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x)))
        return loss, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        loss, gradients = self.gradients(*data)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"my_loss": loss}


def data(bad_row=None):
    # The last of 6 batches has one row, so that the second replica has none.
    x = np.ones([41, 3], "float32")
    if bad_row is not None:
        x[bad_row] = np.nan
    return tf.data.Dataset.from_tensor_slices((x, np.ones([41, 1], "float32"))).batch(8)


for case, model_class, steps, eagerly in [
    ("compiled", keras.Model, 4, False),
    ("function", InAFunction, 1, False),
    ("eager", OfItsOwn, 1, True),
]:
    with strategy.scope():
        inputs = keras.Input([3])
        model = model_class(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=steps, run_eagerly=eagerly)
    for fit, bad_row in enumerate([None, 2 * 8 + 5, None]):
        print("FIT", case, fit, flush=True)
        model.fit(data(bad_row), verbose=0)
print("FIT fp16 0", flush=True)
keras.mixed_precision.set_global_policy("mixed_float16")
with strategy.scope():
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float16")(inputs))
    # The loss scale is so large that the scaled loss is inf in float16.
    owner = keras.optimizers if hasattr(keras.optimizers, "LossScaleOptimizer") else keras.mixed_precision
    scaler = owner.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=2.0**30)
    model.compile(scaler, lambda y, p: tf.square(p - 9))
model.fit(data(), verbose=0)
print("FIT end 0", flush=True)
"""


def test_a_loss_that_is_not_finite_is_reported_once_in_each_fit(children):
    ended = children.run(PROGRAM)
    reports = re.findall(r"FIT (\w+) (\d)|^(the loss.*?);", ended.out, re.MULTILINE)
    found: dict[tuple[str, str], list[str]] = {}
    for case, fit, report in reports:
        if case:
            key = (case, fit)
            found[key] = []
        else:
            found[key].append(report)
    for case in ("compiled", "function", "eager"):
        assert found[case, "0"] == []
        # Row 5 of a batch of 8 belongs to the second of two replicas.
        assert found[case, "1"] == ["the loss of replica 1 is not finite (nan) in step 3"]
        # The weights are NaN by now. The steps are counted anew.
        assert found[case, "2"] == ["the losses of replicas 0 and 1 are not finite (nan) in step 1"]
    assert found["fp16", "0"] == []
