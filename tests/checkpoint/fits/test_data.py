"""Interrupted fits go on at their position in the data, whatever kind of data it is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.checkpoint.fits.interrupted import (
    BATCH,
    EPOCHS,
    ROWS,
    Interrupt,
    InterruptionError,
    check,
    data,
    fit,
    shuffled,
)
from tfdist.checkpoint import AutoResume

keras = tf.keras


def repeated(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).repeat().batch(BATCH)


def of_unknown_size(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    return shuffled(x, y).filter(lambda x, y: True)


class Rows(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
    """Batches of Keras's own kind, whose order fit draws from Python's random numbers."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self.rows = x, y

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return tuple(one[BATCH * index : BATCH * (index + 1)] for one in self.rows)


def resuming(folder: Path) -> AutoResume:
    return AutoResume(str(folder / "run"), every_steps=1)


def drawn_by_a_generator(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns data of a generator that draws another order in each epoch."""
    draw = np.random.default_rng(1)

    def rows() -> Any:
        for row in draw.permutation(len(x)):
            yield x[row], y[row]

    signature = tuple(tf.TensorSpec(one.shape[1:], one.dtype) for one in (x, y))
    return tf.data.Dataset.from_generator(rows, output_signature=signature).batch(BATCH)


def cached(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns data that have the order of the first epoch in all epochs."""
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=3).cache().batch(BATCH)


@pytest.mark.parametrize("dataset", [pytest.param(None, marks=pytest.mark.full), shuffled])
def test_interruptions_in_the_middle_of_epochs(strategy, dataset, tmp_path):
    check(strategy, tmp_path / "run", at=[{"train": 5}, {"train": 9}, {"train": 1}], dataset=dataset)


@pytest.mark.full
def test_data_without_an_end(strategy, tmp_path):
    options = {"dataset": repeated, "steps_per_epoch": 7}
    check(strategy, tmp_path / "run", at=[{"train": 5}, {"train": 9}], **options)


@pytest.mark.full
@pytest.mark.parametrize("at", [7, 8])
def test_data_of_unknown_size(strategy, at, tmp_path):
    # A snapshot after step 7 is at the end of an epoch whose size Keras does not know yet.
    options = {"dataset": of_unknown_size}
    check(strategy, tmp_path / "run", at=[{"train": at}, {"train": 1}], resume={"every_steps": at - 1}, **options)


@pytest.mark.full
@pytest.mark.parametrize(
    "dataset", [Rows, *(pytest.param(one, marks=pytest.mark.full) for one in (drawn_by_a_generator, cached))]
)
def test_data_whose_epochs_depend_on_the_epochs_before(strategy, dataset, tmp_path):
    check(strategy, tmp_path / "run", at=[{"train": 9}, {"train": 9}], dataset=dataset)


@pytest.mark.parametrize("name", ["one_device", pytest.param("mirrored", marks=pytest.mark.full)])
def test_batches_that_fit_shuffles_without_a_seed_keep_their_order(name, tmp_path):
    strategy = tfdist.create_strategy(name, **({"devices": 2} if name == "mirrored" else {}))

    def started_with(seed: int) -> Any:
        def rows(x: np.ndarray, y: np.ndarray) -> Any:
            random.seed(seed)
            return Rows(x, y)

        return rows

    _, expected = fit(strategy, dataset=started_with(1))
    assert fit(strategy, dataset=started_with(2))[1] != expected
    for seed, at in ((1, 9), (2, 9)):
        with pytest.raises(InterruptionError):
            fit(strategy, Interrupt(train=at), resuming(tmp_path), dataset=started_with(seed))
    assert fit(strategy, resuming(tmp_path), dataset=started_with(3))[1] == expected


def test_an_order_without_a_seed_is_refused(tmp_path):
    tf.random.set_seed(None)
    strategy = tfdist.create_strategy("one_device")
    x, y = data()
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(16))
    for unseeded in (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(16), dataset):
        with pytest.raises(ValueError, match="received ShuffleDataset without a seed"):
            model.fit(unseeded, steps_per_epoch=7, verbose=0, callbacks=[AutoResume(str(tmp_path / "run"))])


@pytest.mark.full
def test_another_number_of_replicas_reads_the_same_records(tmp_path):
    strategies = [tfdist.create_strategy("mirrored", devices=2), tfdist.create_strategy("one_device")]
    model, _ = fit(strategies[1], depends_on_replicas=False)
    for strategy, at in ((strategies[0], 5), (strategies[1], 9), (strategies[0], 6)):
        callbacks = Interrupt(train=at), AutoResume(str(tmp_path / "run"), every_steps=2)
        with pytest.raises(InterruptionError):
            fit(strategy, *callbacks, depends_on_replicas=False)
    found, results_of_found = fit(
        strategies[1], AutoResume(str(tmp_path / "run"), every_steps=2), depends_on_replicas=False
    )
    for one, other in zip(found.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)
    assert len(results_of_found["history"]["loss"]) == EPOCHS
