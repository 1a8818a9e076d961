"""read_shard returns the records of a shard. Each graph is traced once and reads hundreds of random files."""

from __future__ import annotations

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfdist.input import File, plan_shards
from tfdist.input.find import count_files, find_files
from tfdist.input.read import Order, ShardTable, Source, read_shard
from tfdist.input.records import write_tfrecords

FIELDS = ("names", "file", "start", "length", "segments", "offsets", "first_offset")


def reader_of(*, shuffled, seekable):
    """Returns a function that takes (table of tensors, shard, epoch, first, window) and returns the records."""

    @tf.function(reduce_retracing=True)
    def read(table, shard, epoch, first, window):
        table = types.SimpleNamespace(**table, seekable=seekable)
        order = Order(seed=5 if shuffled else None, group=4 if shuffled else 1, window=window)
        blocks = read_shard(table, shard, epoch, first, order=order, source=Source())
        empty = tf.constant([], tf.string)
        return blocks.reduce(empty, lambda before, block: tf.concat([before, block], 0))

    return read


READERS = {(s, k): reader_of(shuffled=s, seekable=k) for s in (True, False) for k in (True, False)}


def tensors(table):
    values = {name: tf.convert_to_tensor(getattr(table, name)) for name in FIELDS}
    values["offsets"] = tf.cast(values["offsets"], tf.int64)
    return values


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def check_shards(folder, data):
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=6).filter(sum))
    num_shards = data.draw(st.sampled_from([1, 2, 4, 8]))
    shuffled, seekable = data.draw(st.booleans()), data.draw(st.booleans())
    window = data.draw(st.integers(1, 100))
    epoch = data.draw(st.integers(0, 3))
    names, total = [], 0
    for i, size in enumerate(sizes):
        (name,) = write_tfrecords((b"%d" % j for j in range(total, total + size)), f"{folder}/f{i}", num_shards=1)
        total += size
        names.append(name)
    files, indexes, _ = count_files([f for f in find_files(names) if f.size], Source(), sum_over_workers=None)
    plan = plan_shards(files, num_shards)
    table = ShardTable(plan, indexes)
    assert table.seekable

    def read(shard, first):
        records = READERS[shuffled, seekable](
            tensors(table), *(tf.constant(value, tf.int64) for value in (shard, epoch, first, window))
        )
        return [int(record) for record in records.numpy()]

    shards = [read(shard, 0) for shard in range(num_shards)]
    assert [len(shard) for shard in shards] == list(plan.records)
    assert sorted(itertools.chain(*shards)) == list(range(total))
    if not shuffled:
        assert all(shard == sorted(shard) for shard in shards)
    shard = data.draw(st.integers(0, num_shards - 1))
    first = data.draw(st.integers(0, len(shards[shard]) + 3))
    assert read(shard, first) == shards[shard][first:]


OPTIONS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


@settings(max_examples=8, **OPTIONS)
@given(data=st.data())
def test_all_shards_together_read_every_record_once_and_can_start_anywhere(folder, data):
    check_shards(folder, data)


@pytest.mark.full
@settings(max_examples=100, **OPTIONS)
@given(data=st.data())
def test_more_shards_together_read_every_record_once_and_can_start_anywhere(folder, data):
    check_shards(folder, data)


def test_epochs_and_seeds_differ_and_neighbours_do_not_stay_together(folder):
    (name,) = write_tfrecords((b"%d" % i for i in range(4000)), f"{folder}/long", num_shards=1)
    _, indexes, _ = count_files(find_files([name]), Source(), sum_over_workers=None)
    table = ShardTable(plan_shards([File(name=name, size=1, records=4000)], 1), indexes)

    def read(seed, epoch):
        zero = tf.constant(0, tf.int64)
        order = Order(seed=seed, group=4, window=1000)
        blocks = read_shard(table, zero, tf.constant(epoch, tf.int64), zero, order=order, source=Source())
        return [int(record) for block in blocks for record in block.numpy()]

    orders = [read(0, 0), read(0, 1), read(1, 0), read(0, 2)]
    assert len(set(map(tuple, orders))) == 4
    assert read(0, 1) == orders[1]
    first = np.array(orders[0][:1000])
    assert sorted(first) == list(range(1000))
    # In a random order of 1000 numbers, the mean difference of neighbours is about 333.
    assert 280 < np.abs(np.diff(first)).mean() < 390
