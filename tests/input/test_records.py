from __future__ import annotations

import re

import pytest
import tensorflow as tf

from tfdist.input import count_records, write_tfrecords


def records(file):
    return [record.numpy() for record in tf.data.TFRecordDataset(file)]


def test_records_are_written_to_the_files_in_turn(tmp_path):
    files = write_tfrecords([b"a", b"b", b"c", b"d", b"e"], str(tmp_path / "new" / "letters"), num_shards=2)
    assert files == [str(tmp_path / "new" / f"letters-0000{i}-of-00002.tfrecord") for i in range(2)]
    assert [records(file) for file in files] == [[b"a", b"c", b"e"], [b"b", b"d"]]
    assert count_records(files) == 5


def test_more_shards_than_records_leave_some_empty(tmp_path):
    files = write_tfrecords([b"a"], str(tmp_path / "letters"), num_shards=3)
    assert [records(file) for file in files] == [[b"a"], [], []]
    assert count_records(files) == 1
    assert count_records(files[1:]) == 0


def test_more_records_than_one_counting_batch_are_counted(tmp_path):
    assert count_records(write_tfrecords([b"x"] * 2500, str(tmp_path / "many"), num_shards=2)) == 2500


def test_a_prefix_without_a_folder_means_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_tfrecords([], "here", num_shards=1) == ["here-00000-of-00001.tfrecord"]
    assert (tmp_path / "here-00000-of-00001.tfrecord").exists()


@pytest.mark.parametrize("num_shards", [0, -1])
def test_a_number_of_shards_below_one_is_refused(num_shards, tmp_path):
    message = f"expected num_shards to be at least 1, received {num_shards}."
    with pytest.raises(ValueError, match=re.escape(message)):
        write_tfrecords([b"a"], str(tmp_path / "letters"), num_shards=num_shards)


def test_an_unknown_compression_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^expected compression to be 'GZIP', '' or None, received 'ZIP'.$"):
        write_tfrecords([b"a"], str(tmp_path / "letters"), num_shards=1, compression="ZIP")


def test_files_of_another_number_of_shards_are_not_written_beside_older_ones(tmp_path):
    prefix = str(tmp_path / "letters")
    files = write_tfrecords([b"a", b"b"], prefix, num_shards=2)
    message = (
        f"expected no files of another number of shards than 1 beside {prefix!r}, received 'letters-00000-of-00002"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        write_tfrecords([b"c"], prefix, num_shards=1)
    assert count_records(prefix + "-*") == 2
    # The same files can be written again, and files of another prefix beside them.
    assert write_tfrecords([b"c", b"d", b"e"], prefix, num_shards=2) == files
    write_tfrecords([b"f"], prefix + "-more", num_shards=1)
    assert count_records(files) == 3


def test_texts_and_tensors_are_written_as_their_bytes(tmp_path):
    texts = ["é", "日本語", "a"]
    files = write_tfrecords([*texts, tf.constant("ü")], tmp_path / "texts", num_shards=1)
    assert [record.decode() for record in records(files[0])] == [*texts, "ü"]
    # The index has the right size, else the file would be refused.
    assert count_records(files) == 4


def test_a_record_that_is_not_serialized_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^expected serialized records of type bytes, received int; serialize each"):
        write_tfrecords([1], tmp_path / "numbers", num_shards=1)
