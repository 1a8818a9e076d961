"""What a task sees of files that another one writes, replaces badly, or locks."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tfdist.doctor.own_files import PREFIX, OwnFiles, _content


@pytest.fixture
def pair(tmp_path):
    own, other = OwnFiles(str(tmp_path), "own"), OwnFiles(str(tmp_path), "other")
    own.write()
    other.write()
    yield own, other
    own.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []


def test_atomic_renames_are_seen_whole_and_in_order(pair):
    own, other = pair
    other.start_renaming()
    seen = own.watch_renames("other", seconds=30)
    assert seen.versions == 20
    assert (seen.missing, seen.torn, seen.backwards, seen.stale) == (0, 0, 0, 0)


def test_a_file_that_is_removed_before_it_is_written_is_missed(pair, tmp_path):
    own, _ = pair
    path = tmp_path / f"{PREFIX}other" / "renamed"
    path.unlink()
    assert own.watch_renames("other", seconds=0.05).missing > 0


@pytest.mark.parametrize("content", [b"", _content(3)[:-1], _content(3)[:200] + _content(4)[200:], b"junk"])
def test_an_incomplete_file_is_torn(content, pair, tmp_path):
    own, _ = pair
    (tmp_path / f"{PREFIX}other" / "renamed").write_bytes(content)
    seen = own.watch_renames("other", seconds=0.05)
    assert seen.torn == seen.reads > 0


def test_an_older_content_after_a_newer_one_is_counted(pair, tmp_path):
    own, _ = pair
    path, beside = tmp_path / f"{PREFIX}other" / "renamed", tmp_path / f"{PREFIX}other" / "beside"
    stopped = threading.Event()

    def alternate():
        number = 0
        while not stopped.wait(0.001):
            number += 1
            beside.write_bytes(_content(number % 2))
            os.replace(beside, path)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        assert own.watch_renames("other", seconds=1.0).backwards > 0
    finally:
        stopped.set()
        thread.join()


def test_files_that_are_not_there_are_not_seen(pair):
    own, _ = pair
    assert own.sees("other")
    assert not own.sees("third")


def test_a_token_with_another_content_is_not_seen(pair, tmp_path):
    own, _ = pair
    (tmp_path / f"{PREFIX}other" / "token").write_bytes(b"")
    assert not own.sees("other")


def test_a_lock_that_is_held_is_not_free(pair):
    own, other = pair
    assert own.lock_of("other") == "held"
    assert own.lock_of("third") == ""
    os.close(other._lock)
    other._lock = None
    assert own.lock_of("other") == "free"


def test_files_that_are_being_written_are_removed(tmp_path):
    for number in range(30):
        files = OwnFiles(str(tmp_path), f"own{number}")
        thread = threading.Thread(target=files.write)
        thread.start()
        files.remove()
        thread.join()
    assert list(tmp_path.iterdir()) == []


def test_folders_that_were_left_for_long_are_removed_and_new_ones_are_kept(tmp_path):
    old, new = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "token").touch()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    files = OwnFiles(str(tmp_path), "own")
    files.write()
    files.remove()
    assert [path.name for path in tmp_path.iterdir()] == [new.name]
