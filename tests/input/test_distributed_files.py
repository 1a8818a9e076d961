"""The dataset that distribute_files returns: its type, its attributes, and its use in Keras and in a custom loop."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.input.pipelines import flat, number, steps_of_replicas, values
from tfdist import create_strategy, workers
from tfdist.input import DistributedFiles, InputState, ShardPlan, distribute, distribute_files

STRATEGIES = [
    pytest.param("one_device", {}, marks=pytest.mark.full),
    ("mirrored", {"devices": 2}),
    pytest.param("central_storage", {"devices": 2}, marks=pytest.mark.full),
    ("multi_worker_mirrored", {}),
]


def parse(record):
    value = tf.strings.to_number(record)[None]
    return value, 2 * value


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
@pytest.mark.parametrize("training", [True, False])
def test_the_result_is_a_distributed_dataset_with_documented_attributes(name, options, training, write):
    files = write(60, num_shards=4)
    dataset = distribute_files(
        create_strategy(name, **options), files, parse_fn=number, global_batch_size=8, training=training
    )
    assert isinstance(dataset, DistributedFiles)
    assert isinstance(dataset, tf.distribute.DistributedDataset)
    # The largest of 8 canonical shards has 8 records, and each step takes one record of each shard.
    assert dataset.steps_per_epoch == 8
    assert dataset.repeats is training
    assert isinstance(dataset.plan, ShardPlan)
    assert sum(dataset.plan.records) == 60
    assert {segment.file for shard in dataset.plan.shards for segment in shard} == set(files)
    assert dataset.state == InputState(canonical_shards=8)


def test_the_default_strategy_gives_a_tf_data_dataset_with_the_same_attributes(write):
    dataset = distribute_files(
        tf.distribute.get_strategy(), write(10), parse_fn=number, global_batch_size=2, training=False
    )
    assert isinstance(dataset, DistributedFiles)
    assert isinstance(dataset, tf.data.Dataset)
    assert (dataset.steps_per_epoch, dataset.repeats) == (5, False)
    assert dataset.state == InputState(canonical_shards=2)
    assert sorted(flat(values(dataset))) == list(range(10))


def test_other_datasets_are_not_instances_of_distributed_files():
    strategy = create_strategy("one_device")
    assert not isinstance(strategy.experimental_distribute_dataset(tf.data.Dataset.range(3)), DistributedFiles)


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
def test_fit_evaluate_and_predict_accept_the_dataset(name, options, write):
    strategy = create_strategy(name, **options)
    files = write(64, num_shards=4)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
    model.set_weights([np.array([[3.0]]), np.array([0.0])])
    read = {"parse_fn": parse, "global_batch_size": 16}
    train = distribute_files(strategy, files, **read)
    test = distribute_files(strategy, files, training=False, **read)
    assert train.steps_per_epoch == test.steps_per_epoch == 4

    history = model.fit(train, steps_per_epoch=train.steps_per_epoch, epochs=3, verbose=0).history
    logs = model.evaluate(test, steps=test.steps_per_epoch, verbose=0, return_dict=True)
    predictions = model.predict(test, steps=test.steps_per_epoch, verbose=0)

    assert int(model.optimizer.iterations.numpy()) == 12
    # The model returns 3x and the label is 2x, so the absolute error of x is x.
    numbers = np.arange(64.0)
    np.testing.assert_allclose(history["mae"], [numbers.mean()] * 3, rtol=1e-6)
    np.testing.assert_allclose(logs["mae"], numbers.mean(), rtol=1e-6)
    np.testing.assert_allclose(np.sort(predictions[:, 0]), 3 * numbers, rtol=1e-6)


@pytest.mark.parametrize(("name", "options"), STRATEGIES)
def test_a_custom_loop_accepts_the_dataset(name, options, write):
    strategy = create_strategy(name, **options)
    dataset = distribute_files(strategy, write(64), parse_fn=parse, global_batch_size=16)

    @tf.function(input_signature=[dataset.element_spec])
    def step(batch):
        sums = strategy.run(lambda x, y: tf.reduce_sum(x), args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)

    batches = iter(dataset)
    assert sum(float(step(next(batches))) for _ in range(dataset.steps_per_epoch)) == sum(range(64))


def test_the_attributes_do_not_change_when_the_dataset_is_read(write):
    strategy = create_strategy("mirrored", devices=2)
    dataset = distribute_files(strategy, write(16), parse_fn=number, global_batch_size=8, training=False)
    before = dataset.steps_per_epoch, dataset.repeats, dataset.plan, dataset.state
    assert sorted(flat(flat(steps_of_replicas(strategy, dataset)))) == list(range(16))
    assert (dataset.steps_per_epoch, dataset.repeats, dataset.plan, dataset.state) == before


def test_a_long_wait_for_other_workers_is_reported(write, monkeypatch, caplog):
    """One process acts as two workers. Its sum takes as long as a slow worker would need."""

    def slow_sum(strategy, counts):
        time.sleep(0.3)
        return counts

    monkeypatch.setattr(workers, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(distribute, "sum_over_workers", slow_sum)
    monkeypatch.setattr(distribute, "count_workers", lambda strategy: 2)
    strategy = create_strategy("one_device")
    with caplog.at_level(logging.WARNING, "tfdist"), pytest.raises(ValueError, match="the same files on every worker"):
        distribute_files(strategy, write(16), parse_fn=number, global_batch_size=8)
    # Worker 1 does not exist, so it has found no files and the call ends with an error.
    assert "every worker to count the records of its files in distribute_files" in caplog.text
