"""The folder of a killed writer is removed by the next writer, and the folder of a living writer never is."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import time
from pathlib import Path

import pytest

from tests import forked
from tfdist.saving import scratch_folder as module
from tfdist.saving.scratch_folder import remove_abandoned, scratch_folder

LONG_SECONDS = 60


@pytest.fixture
def writer(tmp_path):
    """Yields the process id of a writer that has written half of a file, and goes on until it is killed."""
    ready, told = os.pipe()

    def write():
        with scratch_folder(str(tmp_path)) as folder:
            Path(folder, "half").write_text("half")
            os.write(told, b"1")
            time.sleep(LONG_SECONDS)

    child = forked.start(write)
    assert os.read(ready, 1) == b"1"
    yield child
    os.kill(child, signal.SIGKILL)
    forked.end(child)
    os.close(ready)
    os.close(told)


def test_nothing_is_left_after_the_body_or_an_error(tmp_path):
    with scratch_folder(str(tmp_path)) as folder:
        Path(folder, "a").write_text("a")
        assert len(os.listdir(tmp_path)) == 1
    with pytest.raises(OSError, match="no space"), scratch_folder(str(tmp_path)):
        raise OSError("no space")
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_for_the_lock_is_left_without_a_folder(tmp_path, monkeypatch):
    def full(path: str, *arguments: int) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(module.os, "open", full)
    with pytest.raises(OSError, match="no space left"), scratch_folder(str(tmp_path)):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_folder_may_be_renamed(tmp_path):
    with scratch_folder(str(tmp_path)) as folder:
        Path(folder, "a").write_text("a")
        os.rename(folder, tmp_path / "result")
    assert os.listdir(tmp_path) == ["result"]
    assert os.listdir(tmp_path / "result") == ["a"]


def test_the_folder_of_a_living_writer_is_kept(writer, tmp_path):
    (held,) = os.listdir(tmp_path)
    assert remove_abandoned(str(tmp_path)) == []
    with scratch_folder(str(tmp_path)):
        assert held in os.listdir(tmp_path)
    assert os.listdir(tmp_path) == [held]


def test_folders_of_killed_writers_are_removed_by_the_next_writer(tmp_path):
    for _ in range(30):

        def write():
            with scratch_folder(str(tmp_path)) as folder:
                Path(folder, "half").write_text("half")
                os.kill(os.getpid(), signal.SIGKILL)

        assert forked.run(write) == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    with scratch_folder(str(tmp_path)):
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_a_folder_without_a_lock_is_removed_only_when_it_is_old(tmp_path):
    # A writer that was killed at once, or one that is about to lock its folder.
    hidden = tmp_path / ".tfdist-new"
    hidden.mkdir()
    assert remove_abandoned(str(tmp_path)) == []
    os.utime(hidden, (0, 0))
    assert remove_abandoned(str(tmp_path)) == [".tfdist-new"]


def test_other_folders_and_links_are_kept(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / ".tfdist-file").write_text("a file")
    os.symlink(tmp_path / "model", tmp_path / ".tfdist-link")
    before = sorted(os.listdir(tmp_path))
    assert remove_abandoned(str(tmp_path)) == []
    assert sorted(os.listdir(tmp_path)) == before


def test_without_locks_the_folders_of_other_writers_are_kept(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with scratch_folder(str(tmp_path)) as first:
        monkeypatch.setattr(fcntl, "flock", no_locks)
        assert remove_abandoned(str(tmp_path)) == []
        with scratch_folder(str(tmp_path)) as second:
            assert os.path.isdir(first)
            assert os.path.isdir(second)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_another_process_is_removing_is_made_again(tmp_path, monkeypatch):
    stock, seen = fcntl.flock, []

    def remover_comes_first(lock, how):
        if not seen:
            seen.extend(os.listdir(tmp_path))
            other = os.open(tmp_path / seen[0] / "lock", os.O_RDWR)
            stock(other, how)
        return stock(lock, how)

    monkeypatch.setattr(module.fcntl, "flock", remover_comes_first)
    with scratch_folder(str(tmp_path)) as folder:
        assert Path(folder).parent.name not in seen
        assert os.path.isdir(folder)


def test_many_writers_at_once_lose_no_file(tmp_path):
    def write(number):
        for i in range(20):
            with scratch_folder(str(tmp_path)) as folder:
                path = Path(folder, "a")
                path.write_text("a")
                os.rename(path, tmp_path / f"{number}-{i}")

    children = [forked.start(lambda number=number: write(number)) for number in range(6)]
    assert [forked.end(child) for child in children] == [0] * 6
    assert len(os.listdir(tmp_path)) == 120


@pytest.mark.parametrize(("mode", "is_removed"), [(0o1777, False), (0o770, True)])
def test_where_everyone_may_write_folders_of_other_users_are_kept(mode, is_removed, tmp_path, monkeypatch):
    abandoned = tmp_path / ".tfdist-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    tmp_path.chmod(mode)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert bool(remove_abandoned(str(tmp_path))) == is_removed
    assert abandoned.exists() != is_removed
    remove_abandoned(str(tmp_path))
    assert not abandoned.exists()


def test_a_folder_that_another_writer_removes_meanwhile_disturbs_nobody(tmp_path, monkeypatch):
    """Workers of one host write to its folder for temporary files, where everyone may write, at the same time."""
    tmp_path.chmod(0o1777)
    (tmp_path / ".tfdist-other").mkdir()
    scandir = os.scandir

    @contextlib.contextmanager
    def removing(path):
        with scandir(path) as entries:
            found = list(entries)
        for entry in found:
            os.rmdir(entry.path)
        yield iter(found)

    monkeypatch.setattr(module.os, "scandir", removing)
    assert remove_abandoned(str(tmp_path)) == []
    with scratch_folder(str(tmp_path)) as folder:
        assert os.path.isdir(folder)
