"""What becomes of links, permissions and folders when written files are put in their place."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import tensorflow as tf

from tfdist import create_strategy
from tfdist.input import count_records, write_tfrecords
from tfdist.saving import replaced, save_model, written_by_chief


def write(path, text):
    with replaced(path) as scratch:
        Path(scratch).write_text(text)


@pytest.mark.parametrize("across_file_systems", [False, True])
def test_a_link_still_names_the_file_that_is_written(across_file_systems, tmp_path, monkeypatch):
    real, link = tmp_path / "runs" / "model.txt", tmp_path / "latest.txt"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to(real)
    rename = os.replace

    def replace(source, target):
        if across_file_systems and str(real.parent) not in str(source):
            raise OSError(errno.EXDEV, "cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["latest.txt", "runs"]
    assert os.listdir(real.parent) == ["model.txt"]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_keeps_its_permissions(mode, tmp_path):
    path = tmp_path / "model.txt"
    path.write_text("old")
    path.chmod(mode)
    write(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("last", ["", ".", ".."])
def test_files_can_be_written_to_a_folder_without_a_name(last, tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    strategy = create_strategy("one_device")
    for text in ("one", "two"):
        with written_by_chief(f"{folder}/{last}", strategy) as scratch:
            Path(scratch, "file.txt").write_text(text)
    assert [path.name for path in (folder / last).iterdir() if path.is_file()] == ["file.txt"]
    assert (folder / last / "file.txt").read_text() == "two"


def test_a_folder_of_a_remote_file_system_arrives_with_its_content():
    """The file system ram:// renames a folder without its content, and object stores have no folders."""
    path = "ram://saving/model"
    for text in ("one", "two"):
        with replaced(path) as scratch:
            tf.io.gfile.makedirs(f"{scratch}/variables")
            for name in ("variables/data", "saved_model.pb"):
                with tf.io.gfile.GFile(f"{scratch}/{name}", "w") as file:
                    file.write(text)
        for name in ("variables/data", "saved_model.pb"):
            with tf.io.gfile.GFile(f"{path}/{name}") as file:
                assert file.read() == text
    assert tf.io.gfile.listdir("ram://saving") == ["model"]


@pytest.mark.parametrize(
    "call",
    [
        lambda path: replaced(path).__enter__(),
        lambda path: save_model(tf.keras.Sequential(), path / "model.keras"),
        lambda path: write_tfrecords([b"a"], path / "train", num_shards=1),
        lambda path: count_records(path / "train-*"),
        lambda path: count_records([path / "train"]),
    ],
)
def test_an_address_that_pathlib_has_changed_is_refused(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"expected the address of a remote file as text, received the path 'gs:/bucket.*; pass 'gs://bucket"
    with pytest.raises(ValueError, match=message):
        call(Path("gs://bucket"))
    assert os.listdir(tmp_path) == []
