"""A training loop of one's own that is interrupted, and started again, ends with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.checkpoint import ResumableLoop
from tfdist.input import distribute_files, write_tfrecords
from tfdist.keras_compat import keras_in_use

keras = tf.keras
BATCH, EPOCHS = 16, 3


class InterruptionError(Exception):
    """What interrupts a loop."""


@pytest.fixture(autouse=True)
def four_devices(four_cpus, no_surroundings):
    """Every test here runs in a process whose TensorFlow has four logical CPUs, and that knows of no cluster."""
    if not keras_in_use().is_keras3:
        keras.backend.experimental.enable_tf_random_generator()


@pytest.fixture(params=[pytest.param("one_device", marks=pytest.mark.full), "mirrored"])
def strategy(request):
    return tfdist.create_strategy(request.param, **({"devices": 2} if request.param == "mirrored" else {}))


def rows() -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))


def ending(strategy: tf.distribute.Strategy, folder: Any) -> Any:
    return strategy.experimental_distribute_dataset(rows().shuffle(64, seed=3).batch(BATCH))


def repeating(strategy: tf.distribute.Strategy, folder: Any) -> Any:
    return strategy.experimental_distribute_dataset(rows().shuffle(64, seed=3).repeat().batch(BATCH))


def of_files(strategy: tf.distribute.Strategy, folder: Any) -> Any:
    records = [tf.io.serialize_tensor(tf.concat(row, 0)).numpy() for row in rows()]
    files = write_tfrecords(records, str(folder / "rows"), num_shards=4)

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [9])
        return row[:8], row[8:]

    return distribute_files(strategy, files, parse_fn=parse, global_batch_size=BATCH, seed=4)


def train(strategy: tf.distribute.Strategy, dataset: Any, options: dict, *, directory: Any, stop_at: int = 0) -> list:
    """Trains a model in a loop, without a ResumableLoop if there is no directory; returns all values."""
    keras.utils.set_random_seed(5)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        total = keras.metrics.Mean()

    @tf.function
    def step(batch: Any) -> None:
        def of_replica(batch: Any) -> None:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(model(x, training=True) - y)) / BATCH
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            total.update_state(loss)

        strategy.run(of_replica, args=(batch,))

    if directory is None:
        batches = iter(dataset)
        for epoch in range(EPOCHS):
            if not options and epoch:
                batches = iter(dataset)
            for _ in range(7):
                step(next(batches))
    else:
        objects = {"model": model, "optimizer": optimizer, "total": total}
        with ResumableLoop(str(directory), objects, strategy=strategy, every_steps=3) as loop:
            for batch in loop.batches(dataset, epochs=EPOCHS, **options):
                step(batch)
                if loop.steps + 1 == stop_at:
                    raise InterruptionError
                loop.step()
            assert (loop.epoch, loop.steps) == (EPOCHS, 7 * EPOCHS)
    variables = [*model.get_weights(), *(np.asarray(tf.convert_to_tensor(v)) for v in optimizer.variables)]
    return [value.tobytes() for value in [*variables, np.asarray(total.result())]]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (ending, {}),
        pytest.param(repeating, {"steps_per_epoch": 7}, marks=pytest.mark.full),
        pytest.param(of_files, {"steps_per_epoch": 7}, marks=pytest.mark.full),
    ],
)
def test_an_interrupted_loop_ends_with_the_same_bits(make, options, strategy, tmp_path):
    def again() -> Any:
        # The order of a shuffled dataset depends on the seed of the program, too.
        keras.utils.set_random_seed(5)
        return make(strategy, tmp_path)

    expected = train(strategy, again(), options, directory=None)
    for stop_at in (5, 13):
        with pytest.raises(InterruptionError):
            train(strategy, again(), options, directory=tmp_path / "run", stop_at=stop_at)
    assert train(strategy, again(), options, directory=tmp_path / "run") == expected


def test_a_finished_loop_is_not_trained_again(tmp_path, monkeypatch):
    strategy = tfdist.create_strategy("one_device")
    dataset = rows().shuffle(64, seed=3).batch(BATCH)
    expected = train(strategy, dataset, {}, directory=tmp_path / "run")
    # A new process begins with the first loop again.
    monkeypatch.setattr("tfdist.checkpoint.fits._ended", {})
    counted: list[int] = []
    monkeypatch.setattr(ResumableLoop, "step", lambda loop: counted.append(1))
    assert train(strategy, dataset, {}, directory=tmp_path / "run") == expected
    assert not counted


def test_each_batch_needs_one_call_of_step(tmp_path):
    with (
        pytest.raises(ValueError, match="expected one call of step after each batch, received 0"),
        ResumableLoop(str(tmp_path), {"total": tf.Variable(0.0)}) as loop,
    ):
        for _ in loop.batches(tf.data.Dataset.range(4)):
            pass


def test_a_dataset_without_an_end_needs_steps_per_epoch(tmp_path):
    with (
        pytest.raises(ValueError, match="expected steps_per_epoch for a dataset without an end"),
        ResumableLoop(str(tmp_path), {"total": tf.Variable(0.0)}) as loop,
    ):
        next(loop.batches(tf.data.Dataset.range(4).repeat()))


def count(loop: ResumableLoop, dataset: tf.data.Dataset, stop_at: int = 0, **options: int) -> int:
    number = 0
    for _ in loop.batches(dataset, **options):
        loop.step()
        number += 1
        if loop.steps == stop_at:
            raise InterruptionError
    return number


def test_a_second_call_for_the_same_epochs_is_refused(tmp_path):
    with (
        pytest.raises(ValueError, match=r"expected epochs=2 or more in another call of batches, received 1, which an"),
        ResumableLoop(str(tmp_path), {"total": tf.Variable(0.0)}) as loop,
    ):
        for _ in range(3):
            count(loop, tf.data.Dataset.range(4))


def test_calls_with_more_epochs_each_go_on_after_an_interruption(tmp_path):
    found: list[int] = []

    def run(stop_at: int = 0) -> None:
        with ResumableLoop(str(tmp_path), {"total": tf.Variable(0.0)}, every_steps=1) as loop:
            for epoch in range(3):
                found.append(count(loop, tf.data.Dataset.range(4), stop_at, epochs=epoch + 1))

    with pytest.raises(InterruptionError):
        run(stop_at=6)
    run()
    assert found == [4, 0, 2, 4]


@pytest.mark.parametrize("size", ["known", "unknown"])
def test_data_that_are_too_short_for_steps_per_epoch_are_refused(size, tmp_path):
    data = tf.data.Dataset.range(10)
    with (
        pytest.raises(ValueError, match="expected a dataset with 18 batches for 3 epochs of 6 steps"),
        ResumableLoop(str(tmp_path), {"total": tf.Variable(0.0)}) as loop,
    ):
        count(loop, data if size == "known" else data.filter(lambda _: True), epochs=3, steps_per_epoch=6)


def test_data_that_end_before_the_position_are_refused(tmp_path):
    with pytest.raises(InterruptionError), ResumableLoop(str(tmp_path), {}, every_steps=1) as loop:
        count(loop, tf.data.Dataset.range(8), 7)
    with (
        pytest.raises(ValueError, match="expected data with at least the 7 batches that the training has read"),
        ResumableLoop(str(tmp_path), {}) as loop,
    ):
        count(loop, tf.data.Dataset.range(4))


def test_variables_that_do_not_exist_yet_are_refused(tmp_path):
    module, run = tf.Module(), str(tmp_path)
    objects = {"total": tf.Variable(1.0), "module": module}
    with pytest.raises(InterruptionError), ResumableLoop(run, objects, every_steps=1) as loop:
        for _ in loop.batches(tf.data.Dataset.range(4)):
            # As an optimizer does that makes its variables in the first step.
            module.slot = tf.Variable(1.0)
            loop.step()
            raise InterruptionError
    objects = {"total": tf.Variable(1.0), "module": tf.Module()}
    with pytest.raises(ValueError, match="to exist, received none for"), ResumableLoop(run, objects):
        pass
