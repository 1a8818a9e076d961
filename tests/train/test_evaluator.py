from __future__ import annotations

import json
import os
import re
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.checkpoint.components import read_values
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.following import SnapshotFollower
from tfdist.checkpoint.part import Part, write_part
from tfdist.input import write_tfrecords
from tfdist.keras_compat.resume.variables import training_variables
from tfdist.keras_compat.version import keras
from tfdist.train import evaluator
from tfdist.train.evaluations import Evaluations
from tfdist.train.evaluator import Evaluator
from tfdist.train.stopping import read_stop_request

EPOCHS = 3


class Data:
    eval_files: tuple = ()
    num_eval = 10
    image_shape = (2,)

    @staticmethod
    def parse(record):
        number = tf.strings.to_number(record)
        return tf.stack([number, -number]), tf.cast(number, tf.int64) % 2


@pytest.fixture
def data(tmp_path):
    result = Data()
    result.eval_files = write_tfrecords((b"%d" % i for i in range(10)), str(tmp_path / "eval"), num_shards=2)
    return result


@pytest.fixture
def values(tmp_path):
    return types.SimpleNamespace(
        model_dir=str(tmp_path / "run"),
        global_batch_size=4,
        evaluator_timeout_seconds=60.0,
        best_metric="loss",
        stop_patience=None,
    )


@pytest.fixture
def strategy():
    return create_strategy("one_device")


def build(strategy, *, with_input=True):
    layers, losses = keras().layers, keras().losses
    with strategy.scope():
        given = [layers.Input((2,))] if with_input else []
        model = keras().Sequential([*given, layers.Dense(2, name="logits")])
        model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


class Training:
    """A training that takes a step to other weights whenever the evaluator sleeps, until the evaluator is to end."""

    def __init__(self, strategy, data, values):
        self.model, self._data, self.values, self.step = build(strategy), data, values, 0
        with strategy.scope():
            self.model.optimizer.build(self.model.trainable_variables)
        self._tier = DiskTier(os.path.join(values.model_dir, "snapshots"), keep=2)
        self.expected = {}

    def to(self, scale, *, epoch=0, finished=False):
        self.step += 5
        weights = scale * np.array([[-0.01, 0.01], [0.0, 0.0]], "float32")
        self.model.layers[-1].set_weights([weights, np.zeros(2)])
        self.model.optimizer.iterations.assign(self.step)
        batches = tf.data.TFRecordDataset(self._data.eval_files).map(self._data.parse).batch(4)
        self.expected[self.step] = self.model.evaluate(batches, verbose=0, return_dict=True)
        notes = {"replicas": 1, "epoch": epoch, "stopped": False}
        kept = {k: v for k, v in training_variables(self.model).items() if k.startswith(("model/", "optimizer/"))}
        buffer = memoryview(bytearray(100_000))
        part = Part(step=self.step, values=read_values(kept, first_replica=0), notes=notes)
        self._tier.write(self.step, {"worker-0": buffer[: write_part(part, buffer)]}, model="m", finished=finished)


@pytest.fixture
def training(strategy, data, values):
    return Training(strategy, data, values)


@pytest.fixture
def evaluate(strategy, data, values):
    def run(model=None):
        made = Evaluations(os.path.join(values.model_dir, "evaluations.jsonl"))
        follower = SnapshotFollower(os.path.join(values.model_dir, "snapshots"), seen=made.seen)
        evaluator = Evaluator(model or build(strategy), strategy, data, values, evaluations=made, epochs=EPOCHS)
        return evaluator.run(follower)

    return run


def clock(monkeypatch, *events):
    """Replaces each sleep of the evaluator by the next event."""
    waiting = iter(events)
    fake = types.SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=lambda seconds: next(waiting)())
    monkeypatch.setattr(evaluator, "time", fake)


def scalars(folder):
    found = {}
    for file in tf.io.gfile.glob(os.path.join(folder, "logs", "evaluator", "*")):
        for event in tf.compat.v1.train.summary_iterator(file):
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def lines(values):
    with open(os.path.join(values.model_dir, "evaluations.jsonl")) as file:
        return [json.loads(line) for line in file]


def test_each_snapshot_is_evaluated_once_and_the_best_model_is_kept(training, evaluate, values, monkeypatch):
    clock(
        monkeypatch,
        lambda: None,
        lambda: training.to(10.0),
        lambda: None,
        lambda: training.to(1.0),
        lambda: training.to(30.0, epoch=EPOCHS, finished=True),
    )
    assert evaluate() == 0
    losses = {step: logs["loss"] for step, logs in training.expected.items()}
    assert min(losses, key=losses.get) == 10
    written = scalars(values.model_dir)
    for metric in ("accuracy", "loss"):
        expected = {step: logs[metric] for step, logs in training.expected.items()}
        assert written[f"evaluation_{metric}_vs_iterations"] == pytest.approx(expected)
        assert {line["step"]: line["metrics"][metric] for line in lines(values)} == pytest.approx(expected)
    best = keras().models.load_model(os.path.join(values.model_dir, "best.keras"))
    np.testing.assert_array_equal(best.layers[-1].get_weights()[0][0], np.array([-0.01, 0.01], "float32"))
    assert int(best.optimizer.iterations.numpy()) == 10


def test_the_metric_of_the_best_model_can_be_the_accuracy(training, evaluate, values, monkeypatch):
    values.best_metric = "accuracy"
    clock(monkeypatch, lambda: training.to(1.0), lambda: training.to(-1.0, epoch=EPOCHS, finished=True))
    assert evaluate() == 0
    accuracies = {step: logs["accuracy"] for step, logs in training.expected.items()}
    best = keras().models.load_model(os.path.join(values.model_dir, "best.keras"))
    assert int(best.optimizer.iterations.numpy()) == max(accuracies, key=accuracies.get)


@pytest.mark.full
def test_an_evaluator_that_lags_evaluates_the_newest_snapshot(training, evaluate, values, caplog):
    training.to(1.0)
    training.to(2.0, epoch=EPOCHS, finished=True)
    with caplog.at_level("INFO", logger="tfdist"):
        assert evaluate() == 0
    assert [(line["step"], line["left_out"]) for line in lines(values)] == [(10, [5])]
    assert "evaluated step 10 (snapshot-0000000010-0): accuracy 0." in caplog.text
    assert "1 older not evaluated" in caplog.text


@pytest.mark.full
def test_a_restarted_evaluator_goes_on(training, evaluate, values, strategy, monkeypatch):
    values.evaluator_timeout_seconds = 0.0
    training.to(1.0)
    with pytest.raises(TimeoutError):
        evaluate()
    path = os.path.join(values.model_dir, "evaluations.jsonl")
    with open(path, "a") as file:
        # What a process leaves that is killed while it writes.
        file.write('{"step": 7, "metr')
    best = os.path.join(values.model_dir, "best.keras")
    before = os.stat(best).st_mtime_ns
    training.to(20.0, epoch=EPOCHS, finished=True)
    # A model of the user may have no Input layer.
    assert evaluate(build(strategy, with_input=False)) == 0
    assert evaluate() == 0
    with open(path) as file:
        found = [line for line in file.read().splitlines() if line.endswith("}")]
    assert [json.loads(line)["step"] for line in found] == [5, 10]
    assert os.stat(best).st_mtime_ns == before


def test_a_training_that_has_ended_with_fewer_epochs_may_go_on(training, evaluate, values, monkeypatch):
    training.to(1.0, epoch=EPOCHS - 1, finished=True)
    clock(monkeypatch, lambda: None, lambda: training.to(2.0, epoch=EPOCHS, finished=True))
    assert evaluate() == 0
    assert [line["step"] for line in lines(values)] == [5, 10]
    # If it does not go on, the evaluator ends without an error.
    training.to(3.0, epoch=EPOCHS - 1, finished=True)
    values.evaluator_timeout_seconds = 0.0
    assert evaluate() == 0


def test_the_evaluator_asks_the_training_to_end(training, evaluate, values, monkeypatch):
    values.stop_patience = 2

    def not_yet():
        assert read_stop_request(values.model_dir, run="") is None

    clock(
        monkeypatch,
        lambda: training.to(1.0),
        lambda: training.to(20.0),
        lambda: (not_yet(), training.to(10.0)),
        lambda: training.to(30.0, epoch=EPOCHS, finished=True),
    )
    assert evaluate() == 0
    request = read_stop_request(values.model_dir, run="")
    assert request.why == "2 evaluations in a row without a better loss"


def test_a_loss_that_is_not_finite_is_no_improvement(training, evaluate, values, monkeypatch):
    clock(monkeypatch, lambda: training.to(1.0), lambda: training.to(np.nan, epoch=EPOCHS, finished=True))
    assert evaluate() == 0
    assert [line["metrics"]["loss"] is None for line in lines(values)] == [False, True]
    best = keras().models.load_model(os.path.join(values.model_dir, "best.keras"))
    assert int(best.optimizer.iterations.numpy()) == 5


def test_the_evaluator_does_not_wait_for_ever(evaluate, values, monkeypatch):
    values.evaluator_timeout_seconds = 0.01
    clock(monkeypatch, *[lambda: time.sleep(0.005)] * 100)
    directory = os.path.join(values.model_dir, "snapshots")
    message = (
        f"expected a new snapshot in {directory!r} within 0 s, found none; read the logs of the workers, or raise "
        "--evaluator_timeout_seconds."
    )
    with pytest.raises(TimeoutError, match=re.escape(message)):
        evaluate()
