"""Records that are kept in memory have the same order as records from files, and the files are read once."""

from __future__ import annotations

import itertools
import os

import pytest
import tensorflow as tf

from tests.input.pipelines import flat, global_batches, number, steps_of_replicas, values
from tfdist import create_strategy
from tfdist.input import InputState, distribute_files


@pytest.mark.parametrize("policy", [pytest.param("files", marks=pytest.mark.full), "records"])
def test_the_order_is_that_of_reading_from_files(policy, unequal):
    options = {"global_batch_size": 16, "policy": policy, "state": InputState(seed=2, step=7)}
    expected = global_batches(unequal, 2, steps=90, **options)
    assert global_batches(unequal, 2, steps=90, cache=True, **options) == expected


def test_a_reader_of_structures_may_have_shards_without_records(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3")
    options = {
        "reader": lambda name: tf.data.TextLineDataset(name).map(lambda line: {"one": number(line)}),
        "parse_fn": lambda record: record["one"],
        "global_batch_size": 8,
        "training": False,
    }
    expected = global_batches(str(tmp_path / "a.txt"), 1, **options)
    assert sorted(flat(expected)) == [1, 2, 3]
    assert global_batches(str(tmp_path / "a.txt"), 1, cache=True, **options) == expected


def test_training_continues_after_its_files_are_deleted(unequal):
    dataset = distribute_files(
        create_strategy("one_device"), unequal, parse_fn=number, global_batch_size=16, cache=True
    )
    batches = iter(dataset)
    seen = values([next(batches)])
    for name in unequal:
        os.unlink(name)
    seen += values(itertools.islice(batches, 2 * dataset.steps_per_epoch - 1))
    assert sorted(flat(seen)) == sorted(2 * list(range(580)))


def test_a_second_evaluation_reads_no_files(unequal):
    strategy = create_strategy("mirrored", devices=2)
    dataset = distribute_files(strategy, unequal, parse_fn=number, global_batch_size=16, training=False, cache=True)
    first = steps_of_replicas(strategy, dataset)
    for name in unequal:
        os.unlink(name)
    assert steps_of_replicas(strategy, dataset) == first
    assert sorted(flat(flat(first))) == list(range(580))
