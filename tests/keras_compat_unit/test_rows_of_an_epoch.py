"""Two workers train each row of shuffled data once in an epoch, and say so if they cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.processes import launch
from tfdist.keras_compat.data import workers_shuffle_differently as mend
from tfdist.keras_compat.data.order import is_drawn

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.checkpoint import AutoResume

strategy = tfdist.create_strategy()
rows = np.arange(64, dtype="int32")[:, None]
first = []


class FirstBatch(tf.keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.before = self.model.get_weights()[0]

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            first.append(np.flatnonzero(self.model.get_weights()[0] - self.before).tolist())


def trained(*data, **options):
    # Each time that a row is trained, its number of the embedding grows by 1.
    with strategy.scope():
        embedding = tf.keras.layers.Embedding(64, 1, embeddings_initializer="zeros")
        model = tf.keras.Sequential([tf.keras.layers.Input((1,), dtype="int32"), embedding, tf.keras.layers.Flatten()])
        model.compile(tf.keras.optimizers.SGD(1.0), lambda y, p: -16 * p)
    model.fit(*data, verbose=0, **options)
    return np.bincount(np.round(embedding.get_weights()[0][:, 0]).astype(int)).tolist()


targets = np.zeros([64, 1])
counts = [trained(rows, targets, batch_size=16, epochs=3, callbacks=[FirstBatch()]) for _ in range(2)]
counts.append(trained(rows, targets, batch_size=16, epochs=3, shuffle="batch"))
try:
    trained(rows, targets, batch_size=16, callbacks=[AutoResume(sys.argv[1])])
except ValueError as error:
    refused = str(error)
data = tf.data.Dataset.from_tensor_slices((rows, targets)).shuffle(64).batch(16)
for _ in range(2):
    trained(data)
tf.keras.utils.set_random_seed(1)
counts += [trained(rows, targets, batch_size=16, epochs=3)]
data = tf.data.Dataset.from_tensor_slices((rows, targets)).shuffle(64).batch(16)
counts += [trained(data, epochs=3)]
print("arrays that differ", flush=True)
own = np.random.default_rng(strategy.cluster_resolver.task_id).permutation(64)
for _ in range(2):
    trained(rows[own], targets, batch_size=16)
print("RESULT", json.dumps({"counts": counts, "first": first, "refused": refused}))
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "program.py").write_text(PROGRAM)
    return launch("--workers", "2", "--", "program.py", str(folder / "resume"), cwd=folder, deadline_seconds=240).text


@pytest.fixture(scope="module")
def results(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
    assert len(found) == 2, text
    return found


def test_each_row_is_trained_once_in_each_epoch(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert result["counts"] == [[0, 0, 0, 64]] * 5


def test_each_epoch_of_each_training_has_another_order(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert len(result["first"]) == len({tuple(rows) for rows in result["first"]}) == 6


def test_an_order_that_the_workers_have_drawn_is_refused_where_it_has_to_repeat(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "received RandomShuffle without a seed" in result["refused"]


def test_data_that_the_workers_shuffle_differently_is_named_once(text: str) -> None:
    lines = [line for line in text.splitlines() if "the workers read the data in different orders" in line]
    assert len(lines) == 1
    assert "(ShuffleDataset without a seed)" in lines[0]


def test_arrays_that_differ_between_the_workers_are_named_once(text: str) -> None:
    before, _, after = text.partition("arrays that differ")
    assert "the arrays of worker 1 differ from those of worker 0" not in before
    assert after.count("the arrays of worker 1 differ from those of worker 0") == 1


@pytest.mark.usefixtures("four_cpus")
def test_only_data_that_is_split_by_its_rows_can_be_read_in_different_orders(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    path = str(tmp_path / "lines")
    lines = tf.data.TextLineDataset([path])
    interleaved = tf.data.Dataset.from_tensor_slices([path]).interleave(tf.data.TextLineDataset)
    numbers = tf.data.Dataset.range(8)
    assert mend._is_split_by_row(numbers.shuffle(8))
    assert not mend._is_split_by_row(lines.shuffle(8))
    assert not mend._is_split_by_row(interleaved.shuffle(8))
    for policy, expected in (("DATA", True), ("OFF", False), ("FILE", False)):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        for dataset in (lines, numbers):
            assert mend._is_split_by_row(dataset.with_options(options)) == expected
    assert not is_drawn(numbers.shuffle(8))
