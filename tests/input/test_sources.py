"""Files that distribute_files reads: patterns, GZIP files, files without an index, and files of a reader."""

from __future__ import annotations

import tensorflow as tf

from tests.input.pipelines import flat, global_batches, number, values
from tfdist import create_strategy
from tfdist.input import distribute_files, write_tfrecords


def test_a_pattern_finds_files(write, tmp_path):
    write(6, num_shards=3)
    strategy = create_strategy("one_device")
    pattern = str(tmp_path / "numbers-*.tfrecord")
    dataset = distribute_files(strategy, pattern, parse_fn=number, global_batch_size=6)
    assert sorted(next(iter(dataset)).numpy()) == list(range(6))


def test_gzip_files_are_recognised(tmp_path):
    files = write_tfrecords((b"%d" % i for i in range(50)), str(tmp_path / "packed"), num_shards=3, compression="GZIP")
    assert sorted(flat(global_batches(files, 2, global_batch_size=4, training=False))) == list(range(50))


def test_files_without_an_index_are_counted(unequal, tmp_path):
    expected = global_batches(unequal, 2, steps=40, global_batch_size=16)
    for index in tmp_path.glob("*.index.json"):
        index.unlink()
    assert global_batches(unequal, 2, steps=40, global_batch_size=16) == expected


def test_a_reader_may_read_text_files(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("\n".join(str(10 * i + j) for j in range(10)))
    options = {"reader": tf.data.TextLineDataset, "global_batch_size": 4}
    files = str(tmp_path / "*.txt")
    assert sorted(flat(global_batches(files, 2, training=False, **options))) == list(range(30))
    assert sorted(flat(global_batches(files, 1, steps=8, **options))) == list(range(30))


def test_a_reader_may_return_structures(tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text("\n".join(str(10 * i + j) for j in range(10)))

    def read(name):
        return tf.data.TextLineDataset(name).map(lambda line: (number(line), {"twice": 2 * number(line)}))

    dataset = distribute_files(
        create_strategy("one_device"),
        str(tmp_path / "*.txt"),
        parse_fn=lambda one, more: {"one": one, "twice": more["twice"]},
        reader=read,
        global_batch_size=3,
        training=False,
    )
    batches = list(dataset)
    assert sorted(flat(values(batch["one"] for batch in batches))) == list(range(20))
    assert flat(values(batch["twice"] for batch in batches)) == [
        2 * one for one in flat(values(batch["one"] for batch in batches))
    ]
