"""Files that are truncated, corrupt, empty, missing or listed twice."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
import tensorflow as tf

from tests.input.pipelines import Pipelines, flat, global_batches, number
from tfdist import create_strategy
from tfdist.input import distribute_files, write_tfrecords


@pytest.fixture
def corrupt(tmp_path):
    """Writes a file of 100 records, changes one byte of record 70, and returns the file name."""
    (name,) = write_tfrecords((b"%020d" % i for i in range(100)), str(tmp_path / "bad"), num_shards=1)
    content = bytearray(Path(name).read_bytes())
    content[70 * 36 + 20] ^= 255
    Path(name).write_bytes(content)
    return name


def test_a_truncated_file_without_an_index_is_refused(write, tmp_path):
    (name,) = write(100)
    (tmp_path / "numbers.index.json").unlink()
    content = Path(name).read_bytes()
    Path(name).write_bytes(content[:-3])
    message = rf"^expected complete records in '{name}', received {len(content) - 3} bytes that end within record 99, "
    with pytest.raises(ValueError, match=message):
        distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)


def test_a_file_of_another_size_than_its_index_states_is_refused(write):
    (name,) = write(100)
    Path(name).write_bytes(Path(name).read_bytes()[:-3])
    with pytest.raises(ValueError, match=rf"^expected \d+ bytes in '{name}', as its index states, received \d+; "):
        distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)


def test_a_truncated_compressed_file_is_refused(tmp_path):
    (name,) = write_tfrecords(
        (os.urandom(99) for _ in range(100)), str(tmp_path / "packed"), num_shards=1, compression="GZIP"
    )
    (tmp_path / "packed.index.json").unlink()
    Path(name).write_bytes(Path(name).read_bytes()[:-2000])
    with pytest.raises(ValueError, match=rf"^expected complete records in '{name}', received a truncated or corrupt"):
        distribute_files(Pipelines(1), [name], parse_fn=number, global_batch_size=4)


@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_corrupt_record_is_named(corrupt, training):
    dataset = distribute_files(
        create_strategy("one_device"), [corrupt], parse_fn=number, global_batch_size=4, training=training
    )
    message = f"expected readable records, received a truncated or corrupt record: record 70 of {corrupt};"
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        for _ in itertools.islice(dataset, 25):
            pass


def test_skipped_records_are_reported_and_counted(corrupt, capfd):
    batches = global_batches([corrupt], 1, global_batch_size=1, training=False, skip_corrupt=True)
    assert sorted(flat(batches)) == list(range(70))
    assert f"tfdist.input: skipped 30 records of '{corrupt}' from record 70 on, which" in capfd.readouterr().err


def test_pipelines_that_skip_records_end_at_the_same_step(corrupt):
    """A pipeline that skips records still makes as many steps as the others, so no pipeline waits for another."""
    batches = global_batches([corrupt], 2, global_batch_size=4, training=False, skip_corrupt=True)
    assert len(batches) == 25
    seen = flat(batches)
    assert len(set(seen)) == len(seen) < 100


def test_a_corrupt_first_record_is_refused_or_skipped(tmp_path):
    names = write_tfrecords((b"%d" % i for i in range(40)), str(tmp_path / "bad"), num_shards=2)
    content = bytearray(Path(names[0]).read_bytes())
    content[12] ^= 255
    Path(names[0]).write_bytes(content)
    options = {"global_batch_size": 3, "training": False}
    message = f"expected readable records, received a truncated or corrupt record: record 0 of {names[0]};"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        global_batches(names, 1, **options)
    assert set(flat(global_batches(names, 1, skip_corrupt=True, **options))) >= set(range(1, 40, 2))


def test_a_reader_that_fails_is_named(tmp_path):
    (tmp_path / "lines.txt").write_text("1\n2\nthree\n4")
    options = {
        "reader": lambda name: tf.data.TextLineDataset(name).map(number),
        "parse_fn": lambda value: value,
        "global_batch_size": 2,
    }
    name = str(tmp_path / "lines.txt")
    with pytest.raises(ValueError, match=rf"^expected the reader to return the records of '{name}', received Inv"):
        global_batches([name], 1, **options)


def test_a_reader_that_returns_fewer_records_than_it_did_at_first_is_named(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("1\n2\n3\n4")
    options = {"reader": tf.data.TextLineDataset, "parse_fn": number, "global_batch_size": 2, "training": False}
    dataset = distribute_files(create_strategy("one_device"), [str(file)], **options)
    file.write_text("1")
    message = (
        "expected the reader to return the records that it returned when they were counted, received none for record 1 "
        f"of {file}; let the reader return the same records each time."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(message)):
        list(dataset)


def test_a_file_that_is_listed_twice_is_refused(write):
    (name,) = write(9)
    with pytest.raises(ValueError, match=f"^expected every file once, received '{name}' twice."):
        distribute_files(Pipelines(1), [name, name], parse_fn=number, global_batch_size=4)


def test_a_file_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match=r"^expected a file at '/nowhere/at-all', received none; check the name."):
        distribute_files(Pipelines(1), ["/nowhere/at-all"], parse_fn=number, global_batch_size=4)


def test_empty_files_are_reported_and_left_out(tmp_path, caplog):
    files = write_tfrecords([b"1", b"2"], str(tmp_path / "few"), num_shards=4)
    assert sorted(flat(global_batches(files, 1, global_batch_size=2, training=False))) == [1, 2]
    assert f"received 2 empty files, which are left out; the first is '{files[2]}'" in caplog.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            "/nowhere/at-all-*.tfrecord",
            "expected files that match '/nowhere/at-all-*.tfrecord', received none; check the pattern.",
        ),
        ([], "expected at least one file, received an empty list."),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_no_files_are_refused(files, message, training):
    with pytest.raises(ValueError, match=re.escape(message)):
        distribute_files(Pipelines(1), files, parse_fn=number, global_batch_size=1, training=training)
