"""The rule by which the losses of replicas make up that of the global batch."""

from __future__ import annotations

import json

import pytest

from tfdist import create_strategy
from tfdist.keras_compat.losses.rule import StepRule


def test_without_a_division_the_rule_is_the_mean_over_replicas():
    rule = StepRule("auto", "Model.train_step")
    assert rule.use() == "replica_mean"
    assert not rule.takes_change()


def test_a_division_before_any_use_changes_the_rule_at_once():
    rule = StepRule("auto", "Model.train_step")
    rule.sees_division("tf.nn.compute_average_loss")
    assert rule.use() == "global_sum"
    assert not rule.takes_change()


def test_a_division_after_a_use_asks_for_another_trace_once():
    rule = StepRule("auto", "Model.train_step")
    rule.use()
    rule.sees_division("tf.nn.compute_average_loss")
    assert rule.takes_change()
    assert not rule.takes_change()
    rule.refuse_change()


def test_a_division_that_comes_too_late_is_refused():
    rule = StepRule("auto", "Model.train_step")
    rule.use()
    rule.sees_division("tf.nn.compute_average_loss")
    with pytest.raises(ValueError, match=r"expected Model.train_step to divide its losses from its first trace on"):
        rule.refuse_change()


@pytest.mark.parametrize("asked", ["replica_mean", "global_sum"])
def test_a_rule_that_was_asked_for_stays(asked):
    rule = StepRule(asked, "Model.train_step")
    rule.sees_division("tf.nn.compute_average_loss")
    assert rule.use() == asked


def test_an_unknown_rule_is_refused():
    message = r"expected loss to be one of auto, replica_mean, global_sum, received 'mean'\."
    with pytest.raises(ValueError, match=message):
        create_strategy("one_device", loss="mean")


PROGRAM = """
import contextlib, json, logging, sys
import numpy as np
from tfdist import create_strategy

strategy = create_strategy("mirrored", devices=2, loss=sys.argv[1])
import tensorflow as tf

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("tfdist").addHandler(handler)
keras = tf.keras
keras.backend.set_floatx("float64")
x = np.random.default_rng(0).normal(size=(29, 4))
y = x.sum(axis=1, keepdims=True)


class Own(keras.Model):
    def __init__(self, divides):
        super().__init__()
        self.dense, self.divides = keras.layers.Dense(1), divides
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, inputs):
        return self.dense(inputs)

    def loss_of(self, x, y):
        rows = tf.reduce_mean(tf.square(y - self.dense(x)), axis=-1)
        return tf.nn.compute_average_loss(rows) if self.divides else tf.reduce_mean(rows)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(self.loss_of(*data))
        return {"loss": self.tracker.result()}


def numbers(scope, divides):
    keras.utils.set_random_seed(1)
    with scope:
        model = Own(divides)
        model.compile(keras.optimizers.SGD(0.05))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    evaluated = np.ravel(model.evaluate(data, verbose=0))
    return [*losses, *map(float, evaluated), *np.concatenate([np.ravel(weight) for weight in model.get_weights()])]


found = {}
for divides in (False, True):
    del lines[:]
    own, expected = (numbers(scope, divides) for scope in (strategy.scope(), contextlib.nullcontext()))
    found[str(divides)] = [float(np.abs(np.subtract(own, expected)).max()), sum("rule global_sum" in l for l in lines)]
print("RESULT", json.dumps(found))
"""


@pytest.mark.parametrize(
    ("asked", "mean_is_right", "divided_is_right", "lines"),
    [("auto", True, True, 2), ("replica_mean", True, False, 0), ("global_sum", False, True, 0)],
)
def test_the_rule_decides_which_programs_compute_the_numbers_of_one_device(
    asked, mean_is_right, divided_is_right, lines, children
):
    out = children.run(PROGRAM, asked).out
    found = json.loads(out.split("RESULT ")[1].splitlines()[0])
    assert (found["False"][0] < 1e-12) == mean_is_right
    assert (found["True"][0] < 1e-12) == divided_is_right
    # The log names the rule of train_step and that of test_step.
    assert [found["False"][1], found["True"][1]] == [0, lines]


# As if Keras and TensorFlow were installed for the user, or in the environment below this one.
ELSEWHERE = """
import tfdist._installed
folders = tfdist._installed._FOLDERS
tfdist._installed._FOLDERS = tuple(folder for folder in folders if "site-packages" not in folder)
assert len(tfdist._installed._FOLDERS) < len(folders)
"""


def test_packages_that_are_installed_elsewhere_are_not_the_program(children):
    out = children.run(ELSEWHERE + PROGRAM, "auto").out
    found = json.loads(out.split("RESULT ")[1].splitlines()[0])
    assert found["False"][0] < 1e-12
    assert found["False"][1] == 0
