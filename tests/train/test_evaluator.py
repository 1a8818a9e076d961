from __future__ import annotations

import os
import re
import time
import types

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.input import write_tfrecords
from tfdist.keras_compat.version import keras
from tfdist.saving import save_model
from tfdist.train import evaluator


class Data:
    eval_files: tuple = ()
    num_eval = 10

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
    return types.SimpleNamespace(model_dir=str(tmp_path / "run"), global_batch_size=4, evaluator_timeout_seconds=60.0)


@pytest.fixture
def strategy():
    return create_strategy("one_device")


def build(strategy):
    layers, losses = keras().layers, keras().losses
    with strategy.scope():
        model = keras().Sequential([layers.Input((2,)), layers.Dense(2, name="logits")])
        model.compile("adam", losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


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


def test_the_evaluator_evaluates_each_checkpoint_and_then_the_final_model(strategy, data, values, monkeypatch, caplog):
    trained = build(strategy)
    x = tf.reshape(tf.range(32, dtype=tf.float32), (16, 2))
    checkpoint, final = (os.path.join(values.model_dir, f"{name}.keras") for name in ("checkpoint", "model"))
    expected = {}

    def train_and_save(path, later):
        trained.fit(x, tf.zeros(16, tf.int64), 2, verbose=0)
        step = int(trained.optimizer.iterations.numpy())
        batches = tf.data.TFRecordDataset(data.eval_files).map(data.parse).batch(4)
        expected[step] = trained.evaluate(batches, verbose=0, return_dict=True)
        save_model(trained, path)
        os.utime(path, (time.time() + later,) * 2)

    clock(
        monkeypatch,
        lambda: None,
        lambda: train_and_save(checkpoint, 10),
        lambda: None,
        lambda: train_and_save(checkpoint, 20),
        lambda: train_and_save(final, 30),
    )
    with caplog.at_level("INFO", logger="tfdist"):
        assert (
            evaluator.evaluate_checkpoints(
                build(strategy), strategy, data, values, checkpoint=checkpoint, started=time.time()
            )
            == 0
        )
    assert [line.getMessage().split(":")[0] for line in caplog.records if line.name == "tfdist"] == [
        "evaluated checkpoint.keras",
        "evaluated checkpoint.keras",
        "evaluated model.keras",
    ]
    written = scalars(values.model_dir)
    for metric in ("accuracy", "loss"):
        of_step = written[f"evaluation_{metric}_vs_iterations"]
        assert of_step == pytest.approx({step: logs[metric] for step, logs in expected.items()})
        assert list(of_step) == [8, 16, 24]


def test_files_of_an_earlier_training_are_not_evaluated(strategy, data, values, monkeypatch):
    model = build(strategy)
    checkpoint, final = (os.path.join(values.model_dir, f"{name}.keras") for name in ("checkpoint", "model"))
    for path in (checkpoint, final):
        save_model(model, path)
        os.utime(path, (time.time() - 100,) * 2)
    values.evaluator_timeout_seconds = 0.01
    clock(monkeypatch, *[lambda: time.sleep(0.005)] * 100)
    message = (
        f"expected a new checkpoint {checkpoint} within 0 s, found none; read the logs of the workers, or raise "
        "--evaluator_timeout_seconds."
    )
    with pytest.raises(TimeoutError, match=re.escape(message)):
        evaluator.evaluate_checkpoints(model, strategy, data, values, checkpoint=checkpoint, started=time.time())
