"""The command `python -m tfdist.input inspect`."""

from __future__ import annotations

import importlib

import pytest
import tensorflow as tf

from tfdist.input import write_tfrecords
from tfdist.input.inspect import inspect, main

module = importlib.import_module("tfdist.input.inspect")


@pytest.fixture
def files(tmp_path):
    """Writes two files of 30 and 29 records. Each record has 10 bytes of data and 16 bytes of framing."""
    write_tfrecords([b"0123456789"] * 59, str(tmp_path / "data"), num_shards=2)
    return str(tmp_path / "data-*.tfrecord")


def test_inspect_shows_files_records_bytes_plan_and_imbalance(files, capsys):
    assert main(["inspect", files, "--pipelines", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 files, uncompressed TFRecord, 59 records (from an index), 1,534 bytes" in out
    assert "policy files" in out
    assert "imbalance 1.017" in out
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) >= 2


def test_with_a_batch_size_inspect_plans_the_shards_of_training(files):
    text = inspect(files, num_pipelines=2, global_batch_size=16)
    assert "8 canonical shards, 4 for each of 2 pipelines:" in text
    assert "policy records" in text


def test_files_that_must_be_read_from_the_beginning_are_reported(tmp_path):
    write_tfrecords([b"1"] * 9, str(tmp_path / "packed"), num_shards=1, compression="GZIP")
    text = inspect(str(tmp_path / "packed-*.tfrecord"), num_pipelines=1)
    assert "1 files, GZIP TFRecord, 9 records (from an index)" in text
    assert "a start in the middle of a file reads the file from its beginning" in text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--pipelines", "0"], "expected num_pipelines to be at least 1, received 0."),
        (["--pipelines", "3", "--policy", "files"], "expected at least 3 files, one for each shard, received 2"),
        (
            ["--pipelines", "2", "--global-batch-size", "5"],
            "expected global_batch_size to be a multiple of the 2 pipelines, received 5.",
        ),
    ],
)
def test_a_refusal_is_one_sentence(files, more, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["inspect", files, *more])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_pattern_without_files_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "*.tfrecord")])
    assert "received none; check the pattern." in capsys.readouterr().err


@pytest.mark.parametrize("pattern", ["{}", "{}/", "{}/*"])
def test_a_directory_is_refused(tmp_path, pattern, capsys):
    inner = tmp_path / "data"
    (inner / "shards").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", pattern.format(inner)])
    assert ended.value.code == 2
    directory = pattern.format(inner).replace("*", "shards")
    assert capsys.readouterr().err == (
        f"python -m tfdist.input inspect: expected a file at {directory!r}, received a directory; write a pattern such "
        f"as {directory.rstrip('/') + '/*.tfrecord'!r}.\n"
    )


def test_a_file_that_cannot_be_read_is_one_sentence(files, monkeypatch, capsys):
    def refuse(*args, **kwargs):
        raise tf.errors.PermissionDeniedError(None, None, "data-00000; Permission denied\n  in C++")

    monkeypatch.setattr(module, "count_files", refuse)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", files])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "python -m tfdist.input inspect: expected readable files, received PermissionDeniedError: data-00000; "
        "Permission denied\n"
    )
