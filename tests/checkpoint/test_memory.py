"""The newest complete part stays in shared memory, whatever happens to the process that writes it."""

from __future__ import annotations

import os
import shutil
import signal
import threading

import numpy as np
import pytest

from tests import forked
from tests.checkpoint import killing
from tfdist.checkpoint import memory
from tfdist.checkpoint.memory import MemoryTier, folder_of, remove_forgotten, remove_unused
from tfdist.checkpoint.part import Part, read_part


def part_of(step: int, size: int = 50) -> Part:
    return Part(step=step, values={"weights": np.full([size], step, "float32")}, notes={"epoch": step})


def check(part: Part | None, step: int, size: int = 50) -> None:
    assert part is not None
    assert (part.step, part.notes) == (step, {"epoch": step})
    np.testing.assert_array_equal(part.values["weights"], np.full([size], step, "float32"))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run").mkdir()
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(root):
    """Returns a function that opens the tier of a worker."""
    tiers = []

    def open_tier(worker=0, run="run"):
        tiers.append(MemoryTier(str(root.parent / run), worker=worker, root=root))
        return tiers[-1]

    yield open_tier


def test_the_newest_part_is_read_by_the_next_process(opened, root):
    tier = opened()
    assert tier.newest() is None
    for step in (3, 5, 9):
        tier.write(part_of(step))
        check(tier.newest(), step)
    tier.close()
    check(opened().newest(), 9)


def test_a_part_of_an_earlier_step_becomes_the_newest_one(opened):
    # A run that began anew.
    tier = opened()
    tier.write(part_of(9))
    tier.write(part_of(2))
    check(tier.newest(), 2)
    tier.close()
    check(opened().newest(), 2)


def test_larger_parts_get_larger_slots(opened):
    tier = opened()
    for step, size in enumerate([10, 1_000_000, 10, 3_000_000, 2]):
        tier.write(part_of(step, size))
        check(tier.newest(), step, size)
    tier.close()
    check(opened().newest(), 4, 2)


def test_each_worker_and_each_run_has_its_own_parts(opened, root):
    (root.parent / "other").mkdir()
    opened().write(part_of(1))
    opened(worker=1).write(part_of(2))
    opened(run="other").write(part_of(3))
    assert len(os.listdir(root)) == 3
    for step, key in ((1, {}), (2, {"worker": 1}), (3, {"run": "other"})):
        assert folder_of(str(root.parent / key.get("run", "run")), key.get("worker", 0), root=root).exists(), step


def test_a_pinned_part_stays_while_others_are_written(opened):
    tier = opened()
    tier.write(part_of(1))
    with tier.pinned() as data:
        for step in range(2, 8):
            tier.write(part_of(step))
            check(tier.newest(), step)
            check(read_part(data), 1)
        with pytest.raises(ValueError, match="expected a part that is not pinned"), tier.pinned():
            pass
    with tier.pinned() as data:
        check(read_part(data), 7)


def test_a_second_process_is_refused_until_the_first_one_has_ended(opened):
    tier = opened()

    def second():
        with pytest.raises(ValueError, match="expected no other training in the directory"):
            opened()

    assert forked.run(second) == 0
    tier.close()
    opened()


def test_cleared_parts_are_gone(opened, root):
    tier = opened()
    tier.write(part_of(1))
    tier.clear()
    assert os.listdir(root) == []


def test_parts_of_a_run_whose_directory_is_gone_are_removed(opened, root):
    (root.parent / "other").mkdir()
    kept, gone = opened(), opened(run="other")
    for tier in (kept, gone):
        tier.write(part_of(1))
        tier.close()
    shutil.rmtree(root.parent / "other")
    assert remove_forgotten(root) == [folder_of(str(root.parent / "other"), 0, root=root).name]
    check(opened().newest(), 1)


def test_a_directory_that_is_made_again_begins_another_run(opened, root):
    tier = opened()
    tier.write(part_of(1))
    tier.close()
    shutil.rmtree(root.parent / "run")
    (root.parent / "run").mkdir()
    assert opened().newest() is None


def test_a_directory_whose_visible_files_are_removed_begins_another_run(opened, root):
    tier = opened()
    tier.write(part_of(3))
    tier.close()
    for path in (root.parent / "run").glob("[!.]*"):
        path.unlink()
    assert opened().newest() is None


def test_a_kill_at_any_system_call_leaves_the_newest_complete_part(opened, root):
    # Each child writes parts of growing size, which need new slots, and is killed one call later than the one before.
    ended = False
    number = 0
    while not ended:
        directory = root.parent / f"run-{number}"
        directory.mkdir()
        reader, writer = os.pipe()

        def write_and_die(directory=directory, number=number, writer=writer):
            tier = MemoryTier(str(directory), worker=0, root=root)
            tier.write(part_of(1, 10))
            os.write(writer, b"1")
            tell = os.write
            killing.at_call(number, killing.killed)
            for step, size in ((2, 400_000), (3, 800_000), (4, 5)):
                tier.write(part_of(step, size))
                tell(writer, str(step).encode())

        code = forked.run(write_and_die)
        os.close(writer)
        newest = int(os.read(reader, 10)[-1:])
        os.close(reader)
        ended = code == 0
        assert ended or code == -signal.SIGKILL
        sizes = {1: 10, 2: 400_000, 3: 800_000, 4: 5}
        tier = MemoryTier(str(directory), worker=0, root=root)
        check(tier.newest(), newest, sizes[newest])
        tier.clear()
        number += 1
    assert number > 8


def test_a_kill_in_the_middle_of_a_copy_leaves_the_part_before(opened, monkeypatch):
    def die(part, buffer, index, number):
        buffer[:32] = bytes(32)
        killing.killed()

    def write():
        tier = opened()
        tier.write(part_of(1))
        tier.write(part_of(2))
        monkeypatch.setattr(memory, "write_part", die)
        tier.write(part_of(3))

    assert forked.run(write) == -signal.SIGKILL
    check(opened().newest(), 2)


def test_full_memory_keeps_the_newest_part(opened, monkeypatch):
    tier = opened()
    tier.write(part_of(1))
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: killing.no_space())
        with pytest.raises(OSError, match="No space left"):
            tier.write(part_of(2, 10_000_000))
    check(tier.newest(), 1)
    tier.write(part_of(3))
    check(tier.newest(), 3)


def test_an_error_while_it_is_opened_leaves_the_parts_to_the_next_one(opened, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(memory, "run_of", lambda _: killing.no_space())
        with pytest.raises(OSError, match="No space left"):
            opened()
    assert opened().newest() is None


def test_parts_of_workers_that_nobody_uses_are_removed_at_the_end_of_a_run(opened, root):
    (root.parent / "other").mkdir()
    for worker, run in ((0, "run"), (11, "run"), (0, "other")):
        tier = opened(worker, run)
        tier.write(part_of(worker))
        tier.close()
    opened(1, "run").write(part_of(1))
    remove_unused(str(root.parent / "run"), root=root)
    left = {folder_of(str(root.parent / run), worker, root=root) for worker, run in ((1, "run"), (0, "other"))}
    assert set(root.iterdir()) == left


def test_a_folder_that_others_may_write_is_refused_and_left_as_it_is(opened, root):
    folder = folder_of(str(root.parent / "run"), 0, root=root)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "slot-0").write_text("forged")
    with pytest.raises(PermissionError, match=r"expected '.*' to be a folder that only this user can change"):
        opened()
    assert [path.name for path in folder.iterdir()] == ["slot-0"]


def test_a_link_to_a_folder_is_refused_and_nothing_is_written_to_it(opened, root):
    target = root.parent / "of this user"
    target.mkdir(mode=0o700)
    (target / "new-house").touch()
    folder_of(str(root.parent / "run"), 0, root=root).symlink_to(target)
    with pytest.raises(PermissionError):
        opened()
    assert [path.name for path in target.iterdir()] == ["new-house"]


def test_the_folder_of_another_user_is_refused(opened, root, monkeypatch):
    opened().close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        opened()


def test_a_folder_that_others_may_write_is_not_removed_as_forgotten(root):
    folder = root / f"tfdist-{os.getuid()}-0-0"
    folder.mkdir()
    (folder / "directory").write_text(str(root / "gone"))
    folder.chmod(0o777)
    assert remove_forgotten(root) == []
    folder.chmod(0o700)
    assert remove_forgotten(root) == [folder.name]


def test_memory_may_be_closed_while_a_thread_reserves_it(opened, root, monkeypatch):
    tier = opened()
    allocate, allocates, may_go_on, errors = os.posix_fallocate, threading.Event(), threading.Event(), []

    def slow(*arguments):
        allocates.set()
        assert may_go_on.wait(20)
        allocate(*arguments)

    def reserve():
        try:
            tier.reserve(1000)
        except Exception as error:
            errors.append(error)

    monkeypatch.setattr(memory.os, "posix_fallocate", slow)
    threads = [threading.Thread(target=one, daemon=True) for one in (reserve, tier.clear)]
    threads[0].start()
    assert allocates.wait(20)
    threads[1].start()
    # Without a lock, the folder would be removed now.
    threads[1].join(0.2)
    may_go_on.set()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert list(root.iterdir()) == []
