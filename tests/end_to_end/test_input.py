"""Workers that read files of unequal lengths end at the same step, and each record is evaluated once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.processes import launch

PROGRAM = """
import json, os, sys
import tensorflow as tf
import tfdist
from tfdist.input import distribute_files

strategy = tfdist.create_strategy()
with strategy.scope():
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=["mae"])


class Count(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.steps = []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1


def parse(record):
    number = tf.strings.to_number(record)
    return number[None] * 0, number[None]


def read(training):
    options = {"parse_fn": parse, "global_batch_size": 16, "policy": "files", "training": training}
    return distribute_files(strategy, sys.argv[1], **options)


train, test, count = read(True), read(False), Count()
history = model.fit(train, steps_per_epoch=train.steps_per_epoch, epochs=3, verbose=0, callbacks=[count]).history
model.set_weights([0 * weight for weight in model.get_weights()])
# The model predicts 0, so the mean absolute error is the mean of the numbers if each number counts once.
mae = model.evaluate(test, steps=test.steps_per_epoch, verbose=0)[1]
print("RESULT", json.dumps([count.steps, train.steps_per_epoch, mae, len(history["loss"])]), flush=True)
"""


# With parameter servers, the workers build the dataset after distribute_files has returned.
PARAMETER_SERVER = """
import json, sys
import tensorflow as tf
import tfdist
from tfdist.input import DistributedFiles, InputState, distribute_files

strategy = tfdist.create_strategy("parameter_server", startup_timeout_seconds=60)
with strategy.scope():
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=["mae"])


def parse(record):
    number = tf.strings.to_number(record)
    return number[None] * 0, number[None]


def read(training):
    return distribute_files(strategy, sys.argv[1], parse_fn=parse, global_batch_size=16, training=training)


train, test = read(True), read(False)
for dataset in (train, test):
    assert isinstance(dataset, DistributedFiles)
    assert isinstance(dataset, tf.distribute.DistributedDataset)
    assert sum(dataset.plan.records) == 607
    assert dataset.state == InputState(canonical_shards=8)
    assert dataset.repeats is (dataset is train)
model.fit(train, steps_per_epoch=train.steps_per_epoch, epochs=2, verbose=0)
steps = int(model.optimizer.iterations.numpy())
model.set_weights([0 * weight for weight in model.get_weights()])
mae = model.evaluate(test, steps=test.steps_per_epoch, verbose=0)[1]
print("RESULT", json.dumps([steps, train.steps_per_epoch, mae]), flush=True)
"""


def write_files(folder: Path) -> None:
    """Writes 607 numbers below 97 to files of unequal lengths in `data`, with indexes."""
    (folder / "write.py").write_text(
        "from tfdist.input import write_tfrecords\n"
        "total = 0\n"
        "for i, size in enumerate([50, 3, 7, 120, 64, 65, 1, 200, 77, 9, 11]):\n"
        "    write_tfrecords((b'%d' % (j % 97) for j in range(total, total + size)), f'data/f{i}', num_shards=1)\n"
        "    total += size\n"
    )
    assert launch("--workers", "1", "--", "write.py", cwd=folder, deadline_seconds=60).code == 0


@pytest.mark.parametrize(
    "index", [True, pytest.param(False, marks=pytest.mark.full)], ids=["with an index", "counted by the workers"]
)
def test_two_workers_end_at_the_same_step_and_evaluate_every_record_once(index: bool, tmp_path: Path) -> None:
    write_files(tmp_path)
    if not index:
        for path in (tmp_path / "data").glob("*.index.json"):
            path.unlink()
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = launch("--workers", "2", "--", "program.py", "data/f*", cwd=tmp_path, deadline_seconds=180)
    lines = {
        line.split(" RESULT ")[0]: line.split(" RESULT ")[1] for line in ended.text.splitlines() if " RESULT " in line
    }
    assert sorted(lines) == ["[worker 0]", "[worker 1]"]
    for line in lines.values():
        steps, per_epoch, mae, epochs = json.loads(line)
        assert steps == [per_epoch] * 3
        assert epochs == 3
        np.testing.assert_allclose(mae, np.mean([j % 97 for j in range(607)]), rtol=1e-6)
    assert ("607 records (counted by all workers)" in ended.text) is not index


def test_workers_of_a_parameter_server_share_the_steps_and_evaluate_every_record_once(tmp_path: Path) -> None:
    write_files(tmp_path)
    (tmp_path / "program.py").write_text(PARAMETER_SERVER)
    ended = launch("--workers", "2", "--ps", "1", "--", "program.py", "data/f*", cwd=tmp_path, deadline_seconds=180)
    (line,) = [line for line in ended.text.splitlines() if " RESULT " in line]
    steps, per_epoch, mae = json.loads(line.split(" RESULT ")[1])
    assert steps == 2 * per_epoch
    np.testing.assert_allclose(mae, np.mean([j % 97 for j in range(607)]), rtol=1e-6)
