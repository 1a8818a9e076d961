"""Files that distribute_files reads: patterns, GZIP files, files without an index, and files of a reader."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("columns", [2, None])
def test_a_reader_may_return_rows_of_words(columns, cache, tmp_path):
    """Each line has its number of words in front; without a fixed number of columns, lines have 2 to 4 words."""
    rows = [["2", "a"] if columns else [str(2 + i % 3), *"abc"[: 1 + i % 3]] for i in range(20)]
    (tmp_path / "rows.txt").write_text("\n".join(map(" ".join, rows)))

    def read(name):
        return tf.data.TextLineDataset(name).map(lambda line: tf.ensure_shape(tf.strings.split(line), [columns]))

    def parse(words):
        return tf.strings.to_number(words[0], tf.int32), tf.size(words), words[-1]

    dataset = distribute_files(
        create_strategy("one_device"),
        tmp_path / "rows.txt",
        parse_fn=parse,
        reader=read,
        global_batch_size=8,
        training=False,
        cache=cache,
    )
    batches = list(dataset)
    expected, counted, last = (flat(values(batch[i] for batch in batches)) for i in range(3))
    assert counted == expected
    assert sorted(zip(counted, last, strict=True)) == sorted((len(row), row[-1].encode()) for row in rows)


def test_a_reader_of_sparse_values_is_refused(tmp_path):
    (tmp_path / "rows.txt").write_text("1\n2")

    def read(name):
        return tf.data.TextLineDataset(name).map(lambda line: tf.sparse.from_dense(number(line)[None]))

    with pytest.raises(
        ValueError, match=r"^expected a reader whose records are tensors, received SparseTensorSpec; con"
    ):
        distribute_files(
            create_strategy("one_device"), tmp_path / "rows.txt", parse_fn=number, reader=read, global_batch_size=2
        )


def test_files_may_be_given_as_paths(tmp_path):
    names = write_tfrecords((b"%d" % i for i in range(30)), tmp_path / "train", num_shards=3)
    assert names == sorted(map(str, tmp_path.glob("train-*")))
    expected = global_batches(names, 1, global_batch_size=6, training=False)
    for files in (tmp_path / "train-*", sorted(tmp_path.glob("train-*"))):
        assert global_batches(files, 1, global_batch_size=6, training=False) == expected


def test_two_sets_of_files_of_one_name_are_refused_in_a_pattern(tmp_path):
    """The old set could have been copied there, or written by another program."""
    names = write_tfrecords((b"%d" % i for i in range(30)), tmp_path / "train", num_shards=3)
    for i in range(2):
        (tmp_path / f"train-0000{i}-of-00002.tfrecord").write_bytes((tmp_path / names[i]).read_bytes())
        (tmp_path / f"train.tfrecord-0000{i}-of-00002").write_bytes(b"")
    pattern = str(tmp_path / "train-*")
    with pytest.raises(
        ValueError, match=r"^expected one set of files that match .*, which belong to two sets of the same"
    ):
        distribute_files(create_strategy("one_device"), pattern, parse_fn=number, global_batch_size=6)
    chosen = str(tmp_path / "train-*-of-00003.tfrecord")
    assert sorted(flat(global_batches(chosen, 1, global_batch_size=6, training=False))) == list(range(30))


def test_long_and_short_records_make_full_batches(tmp_path):
    """All files have the same bytes; the last one has 3000 records, the others 100."""
    for i, count in enumerate([100] * 7 + [3000]):
        with tf.io.TFRecordWriter(str(tmp_path / f"part-{i}.tfrecord")) as file:
            for j in range(count):
                file.write(str(3000 * i + j).encode().ljust(100_000 // count - 16))

    def parse(record):
        return number(tf.strings.strip(record))

    batches = global_batches(str(tmp_path / "part-*"), 1, parse_fn=parse, global_batch_size=64, training=False)
    assert [len(batch) for batch in batches][:57] == [64] * 57
    assert len(batches) == 58
    assert len(set(flat(batches))) == 3700
