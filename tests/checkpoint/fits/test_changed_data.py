"""Fits go on with other numbers of batches or of steps for each execution than before the interruption."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.checkpoint.fits.interrupted import BATCH, EPOCHS, Interrupt, InterruptionError, data, fit, shuffled
from tfdist.checkpoint import AutoResume, fits
from tfdist.input import distribute_files, write_tfrecords

keras = tf.keras


class Counted(keras.callbacks.Callback):
    """Counts the steps that this process makes in each epoch."""

    # AutoResume restores attributes of a callback, but not those of its class.
    found: ClassVar[dict[int, int]] = {}
    epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        Counted.epoch = epoch
        Counted.found[epoch] = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        Counted.found[Counted.epoch] += 1


@pytest.fixture
def counted():
    Counted.found.clear()
    return Counted


def twice(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices((np.concatenate([x, x]), np.concatenate([y, y])))
    return rows.shuffle(64, seed=3).batch(BATCH)


@pytest.mark.parametrize("size", ["known", pytest.param("unknown", marks=pytest.mark.full)])
def test_a_finished_training_reads_all_of_the_data_that_have_grown(size, counted, tmp_path):
    def of(dataset: Any) -> Any:
        return dataset if size == "known" else lambda x, y: dataset(x, y).filter(lambda x, y: True)

    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    fit(strategy, AutoResume(directory), dataset=of(shuffled), epochs=2)
    # A new process begins with the first fit again.
    fits._ended.clear()
    fit(strategy, counted(), AutoResume(directory), dataset=of(twice))
    assert Counted.found == {2: 13, 3: 13}


def test_an_epoch_with_another_number_of_batches_begins_anew(counted, tmp_path, caplog):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=10), AutoResume(directory, every_steps=3), dataset=shuffled)
    _, found = fit(strategy, counted(), AutoResume(directory, every_steps=3), dataset=twice)
    assert "an epoch had 7 steps and has 13 now: epoch 2 begins anew, with the weights of the snapshot" in caplog.text
    assert Counted.found == {1: 13, 2: 13, 3: 13}
    assert found["epochs"] == list(range(EPOCHS))


def test_files_in_other_batches_are_read_from_the_beginning_of_the_epoch(counted, tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    x, y = data()
    records = [tf.io.serialize_tensor(tf.concat(row, 0)).numpy() for row in zip(x, y, strict=True)]
    files = write_tfrecords(records[:96], str(tmp_path / "rows"), num_shards=4)

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [9])
        return row[:8], row[8:]

    def batches_of(size: int) -> Any:
        return lambda x, y: distribute_files(strategy, files, parse_fn=parse, global_batch_size=size, seed=4)

    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=8), AutoResume(directory, every_steps=1), dataset=batches_of(16))
    fit(strategy, counted(), AutoResume(directory, every_steps=1), dataset=batches_of(32))
    assert Counted.found == {1: 3, 2: 3, 3: 3}


@pytest.mark.parametrize(("former", "now", "at"), [(1, 4, 10), (3, 1, 4), (2, 3, 5)])
def test_other_steps_per_execution_read_each_batch_once(former, now, at, tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")
    _, expected = fit(strategy, dataset=shuffled)
    with pytest.raises(InterruptionError):
        callbacks = Interrupt(train=at), AutoResume(directory, every_steps=1)
        fit(strategy, *callbacks, dataset=shuffled, compiled={"steps_per_execution": former})
    _, found = fit(strategy, AutoResume(directory), dataset=shuffled, compiled={"steps_per_execution": now})
    assert found == expected


def test_data_that_end_before_the_position_are_refused(tmp_path):
    strategy, directory = tfdist.create_strategy("one_device"), str(tmp_path / "run")

    def of_unknown_size(rows: int) -> Any:
        return lambda x, y: shuffled(x[:rows], y[:rows]).filter(lambda x, y: True)

    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=6), AutoResume(directory, every_steps=1), dataset=of_unknown_size(100))
    with pytest.raises(ValueError, match="expected data with at least the 4 batches that the training has read"):
        fit(strategy, AutoResume(directory), dataset=of_unknown_size(40))
