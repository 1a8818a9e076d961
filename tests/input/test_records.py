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
