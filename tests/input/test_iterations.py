"""Each further iteration over training data begins at the next epoch of its order, as one long fit would."""

from __future__ import annotations

import itertools
import os

import pytest
import tensorflow as tf

from tests.input.pipelines import flat, number, steps_of_replicas, values
from tfdist import create_strategy
from tfdist.checkpoint import AutoResume, fits
from tfdist.input import distribute_files

keras = tf.keras


class StopError(Exception):
    """What interrupts a fit."""


class Stop(keras.callbacks.Callback):
    """Raises an error after the third batch of a fit."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise StopError


class Recorder(keras.Model):
    """Remembers the batches that it is trained on."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="zeros", name="weight")

    def call(self, x):
        return x * self.weight

    def train_step(self, data):
        seen.append(data[0].numpy().ravel().tolist())
        return {"loss": tf.reduce_sum(data[0])}


seen: list[list[float]] = []


def pair(record):
    value = tf.strings.to_number(record)[None]
    return value, value


@pytest.fixture
def trained(write):
    """Returns functions that make data and a model that remembers its batches, and that return these batches."""
    strategy = create_strategy("one_device")
    files = write(70, num_shards=8)
    seen.clear()

    def data(**options):
        return distribute_files(strategy, files, parse_fn=pair, global_batch_size=8, drop_remainder=True, **options)

    def fit(model, dataset, **options):
        seen.clear()
        model.fit(dataset, verbose=0, **options)
        return list(seen)

    def model():
        with strategy.scope():
            made = Recorder()
            made.build((None, 1))
            made.compile("sgd", "mse", run_eagerly=True)
        return made

    return data, model, fit


def test_several_fits_read_what_one_fit_reads(trained):
    data, model, fit = trained
    expected = fit(model(), data(), epochs=4)
    assert len(expected) == 4 * 8
    assert len({tuple(expected[step]) for step in range(0, 32, 8)}) == 4
    train, same = data(), model()
    assert flat(fit(same, train, epochs=epochs) for epochs in (1, 2, 1)) == expected
    # The state still says where the first iteration began.
    assert train.state.epoch == 0


def test_an_epoch_that_is_read_in_part_is_not_read_again(trained):
    data, model, fit = trained
    expected = fit(model(), data(), epochs=2)
    train, same = data(), model()
    assert fit(same, train, epochs=1, steps_per_epoch=3) == expected[:3]
    assert fit(same, train, epochs=1) == expected[8:]


def test_a_fit_with_an_error_is_followed_by_another_order(trained):
    data, model, fit = trained
    expected = fit(model(), data(), epochs=2)
    train, same = data(), model()
    with pytest.raises(StopError):
        fit(same, train, epochs=1, callbacks=[Stop()])
    assert fit(same, train, epochs=1) == expected[8:]


@pytest.mark.parametrize("cache", [False, True])
def test_loops_read_what_one_iterator_reads(cache, write):
    strategy = create_strategy("mirrored", devices=2)
    files = write(64, num_shards=4)
    dataset = distribute_files(strategy, files, parse_fn=number, global_batch_size=16, cache=cache)
    other = distribute_files(strategy, files, parse_fn=number, global_batch_size=16)
    expected = steps_of_replicas(strategy, itertools.islice(other, 12))
    epochs = [steps_of_replicas(strategy, itertools.islice(dataset, 4))]
    if cache:
        # Further iterations use the records that are in memory.
        for name in files:
            os.unlink(name)
    epochs += [steps_of_replicas(strategy, itertools.islice(dataset, 4)) for _ in range(2)]
    assert flat(epochs) == expected


def test_iterators_that_are_made_before_they_are_read_differ(write):
    dataset = distribute_files(tf.distribute.get_strategy(), write(64), parse_fn=number, global_batch_size=16)
    expected = values(itertools.islice(dataset.at(dataset.state), 8))
    one, other = iter(dataset), iter(dataset)
    assert values(itertools.islice(other, 4)) == expected[4:]
    assert values(itertools.islice(one, 4)) == expected[:4]


def test_evaluation_data_has_one_order(write):
    dataset = distribute_files(
        create_strategy("one_device"), write(64), parse_fn=number, global_batch_size=16, training=False
    )
    assert values(dataset) == values(dataset)


def test_the_second_of_three_fits_goes_on_where_it_was_interrupted(trained, tmp_path, monkeypatch):
    data, model, fit = trained
    expected = fit(model(), data(), epochs=6)

    def program(stops):
        """Trains two epochs in each of three fits; in the second one, an error is raised after three batches."""
        monkeypatch.setattr(fits, "_ended", {})
        train, same, read = data(), model(), []
        for number_of_fit in range(3):
            callbacks = [AutoResume(str(tmp_path / "run"), every_steps=1)]
            others = [Stop()] if stops and number_of_fit == 1 else []
            read.append(fit(same, train, epochs=2, callbacks=[*others, *callbacks]))
        return read

    with pytest.raises(StopError):
        program(stops=True)
    assert seen == expected[16:19]
    first, second, third = program(stops=False)
    assert not first
    # The snapshot of the second step is the last one before the error.
    assert second == expected[18:32]
    assert third == expected[32:]
