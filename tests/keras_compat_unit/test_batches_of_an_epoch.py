"""Two workers take their rows of the same batches of a PyDataset or Sequence, and say so if the batches differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import launch

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.checkpoint import AutoResume

strategy = tfdist.create_strategy()
keras = tf.keras
PyDataset = getattr(keras.utils, "PyDataset", None)
rows = np.arange(60, dtype="int32")


class Data(PyDataset or keras.utils.Sequence):
    def __init__(self, rows, **threads):
        super().__init__(**(threads if PyDataset else {}))
        self.rows = rows

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return self.rows[i * 8 : i * 8 + 8, None], self.rows[i * 8 : i * 8 + 8, None].astype("float32")


class Batches(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.before, self.trained = self.model.get_weights()[0], []

    def on_train_batch_end(self, batch, logs=None):
        now = self.model.get_weights()[0]
        self.trained.append(np.flatnonzero(now - self.before).tolist())
        self.before = now


def trained(data, callbacks=(), epochs=2, **options):
    # The numbers of the embedding change for the rows of each batch.
    with strategy.scope():
        embedding = keras.layers.Embedding(60, 1, embeddings_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((1,), dtype="int32"), embedding, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: -p)
    batches = Batches()
    model.fit(data, verbose=0, epochs=epochs, callbacks=[batches, *callbacks], **options)
    return batches.trained


def of_generator(rows, by_chance=False):
    while True:
        for i in range(0, 56, 8):
            x = rows[i : i + 8, None]
            yield x + (np.random.default_rng().integers(4, size=x.shape) if by_chance else 0), x.astype("float32")


threads = {"workers": 2}
found = {"one": trained(Data(rows)), "two": trained(Data(rows))}
found["threads"] = trained(Data(rows, **threads), **({} if PyDataset else threads))
found["not shuffled"] = trained(Data(rows), shuffle=False)
try:
    trained(Data(rows), callbacks=[AutoResume(sys.argv[1])])
except ValueError as error:
    refused = str(error)
keras.utils.set_random_seed(1)
found["seed"] = trained(Data(rows))
found["generator"] = trained(of_generator(rows), steps_per_epoch=7)
trained(of_generator(rows, by_chance=True), steps_per_epoch=7)
print("batches that differ", flush=True)
own = np.random.default_rng(strategy.cluster_resolver.task_id).permutation(rows)
for _ in range(2):
    trained(of_generator(own), steps_per_epoch=7, epochs=1)
print("RESULT", json.dumps({"found": found, "refused": refused}))
"""
BATCHES = [list(range(start, min(start + 8, 60))) for start in range(0, 60, 8)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "program.py").write_text(PROGRAM)
    return launch("--workers", "2", "--", "program.py", str(folder / "resume"), cwd=folder, deadline_seconds=240).text


@pytest.fixture(scope="module")
def results(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]
    assert len(found) == 2, text
    return found


def test_each_global_batch_is_one_batch_of_the_data(results: list[dict[str, Any]]) -> None:
    for result in results:
        for kind in ("one", "two", "threads", "not shuffled", "seed"):
            epochs = result["found"][kind][:8], result["found"][kind][8:]
            assert [sorted(epoch) for epoch in epochs] == [BATCHES] * 2, kind
        assert result["found"]["not shuffled"] == BATCHES * 2
        assert result["found"]["generator"] == BATCHES[:7] * 2


def test_each_epoch_has_another_order(results: list[dict[str, Any]]) -> None:
    for result in results:
        epochs = [slice(8), slice(8, 16)]
        orders = [result["found"][kind][epoch] for kind in ("one", "two", "threads") for epoch in epochs]
        assert all(orders.count(order) == 1 for order in orders)


def test_a_program_with_a_seed_has_the_order_of_one_device(results: list[dict[str, Any]], tmp_path: Path) -> None:
    program = PROGRAM.partition("threads = ")[0].replace("tfdist.create_strategy()", "tf.distribute.get_strategy()")
    program += 'keras.utils.set_random_seed(1)\nprint("RESULT", json.dumps(trained(Data(rows))))\n'
    (tmp_path / "program.py").write_text(program)
    text = launch("--workers", "1", "--", "program.py", cwd=tmp_path, deadline_seconds=120).text
    expected = json.loads(text.partition("RESULT ")[2].splitlines()[0])
    assert [result["found"]["seed"] for result in results] == [expected] * 2


def test_an_order_that_the_workers_have_drawn_is_refused_where_it_has_to_repeat(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "without a seed; call keras.utils.set_random_seed(1)" in result["refused"]


def test_batches_that_differ_between_the_workers_are_named_once(text: str) -> None:
    """Inputs that are augmented by chance are not."""
    before, _, after = text.partition("batches that differ")
    assert "differ from those of worker 0" not in before
    assert after.count("the batches of worker 1 differ from those of worker 0") == 1
