"""A snapshot on disk is complete or it is not used; the newest complete one is read, whatever happened to a writer."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests import forked
from tests.checkpoint import killing
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.manifest import NAME, BrokenSnapshotError
from tfdist.checkpoint.part import Part, write_part

MODEL = "ab12"


def part_of(step: int) -> memoryview:
    values = {"weights": np.full([50], step, "float32"), "rows": np.arange(step)}
    buffer = bytearray(10_000)
    return memoryview(buffer)[: write_part(Part(step=step, values=values, notes={"epoch": step}), memoryview(buffer))]


def write(tier: DiskTier, step: int, model: str = MODEL, **options) -> Path:
    return tier.write(step, {"worker-0": part_of(step), "worker-1": part_of(step + 1000)}, model=model, **options)


def steps_in(directory: Path) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in os.listdir(directory) if name.startswith("snapshot"))


def check_newest(tier: DiskTier, step: int) -> None:
    stored = tier.newest(model=MODEL)
    assert stored is not None
    assert stored.manifest.step == step
    for name, number in (("worker-0", step), ("worker-1", step + 1000)):
        part = stored.part(name)
        assert part.step == number
        assert part.notes == {"epoch": number}
        np.testing.assert_array_equal(part.values["weights"], np.full([50], number, "float32"))
        np.testing.assert_array_equal(part.values["rows"], np.arange(number))


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(data[:-1])
    elif how == "longer":
        path.write_bytes(data + b"\0")
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def test_what_was_written_is_read(tmp_path):
    tier = DiskTier(tmp_path / "new" / "run", keep=2)
    assert tier.newest(model=MODEL) is None
    write(tier, 5, finished=True, made_by={"tfdist": "1.2.3"})
    check_newest(tier, 5)
    manifest = tier.newest(model=MODEL).manifest
    assert manifest.finished
    assert manifest.made_by == {"tfdist": "1.2.3"}


def test_the_newest_snapshots_are_kept(tmp_path):
    tier = DiskTier(tmp_path, keep=2)
    for step in (5, 10, 100, 20):
        write(tier, step)
    # 100 is a step after 20: a run that began anew has not reached it.
    assert steps_in(tmp_path) == [10, 20, 100]
    tier.forget()
    assert os.listdir(tmp_path) == []


def test_a_snapshot_of_the_same_step_replaces_the_former_one_only_when_it_is_complete(tmp_path):
    tier = DiskTier(tmp_path, keep=1)
    write(tier, 5)
    write(tier, 5, finished=True)
    assert steps_in(tmp_path) == [5]
    assert tier.newest(model=MODEL).manifest.finished


@pytest.mark.parametrize("name", ["worker-0", "worker-1", NAME])
@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "longer", "changed bit"])
def test_a_damaged_snapshot_is_not_used_and_the_log_says_so(name, how, tmp_path, caplog):
    tier = DiskTier(tmp_path, keep=2)
    write(tier, 5)
    newest = write(tier, 10)
    damage(newest / name, how)
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        check_newest(tier, 5)
    assert f"{newest} is not used: " in caplog.text
    # The damaged snapshot does not count among those that are kept.
    write(tier, 10)
    assert steps_in(tmp_path) == [5, 10]
    check_newest(tier, 10)


def test_a_part_that_changes_after_the_check_is_found(tmp_path):
    tier = DiskTier(tmp_path, keep=2)
    folder = write(tier, 5)
    stored = tier.newest(model=MODEL)
    damage(folder / "worker-1", "changed bit")
    with pytest.raises(BrokenSnapshotError, match="worker-1 has another checksum"):
        stored.part("worker-1")


def test_snapshots_of_another_model_are_not_used(tmp_path, caplog):
    tier = DiskTier(tmp_path, keep=2)
    write(tier, 5)
    write(tier, 10, model="other")
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        check_newest(tier, 5)
    assert "is the snapshot of another model" in caplog.text
    with pytest.raises(ValueError, match="received those of another model"):
        tier.newest(model="third")


def test_keep_is_at_least_1(tmp_path):
    with pytest.raises(ValueError, match="expected keep to be at least 1, received 0"):
        DiskTier(tmp_path, keep=0)


def calls_of_a_write(tmp_path) -> int:
    """Returns the number of system calls of a second write, which removes the first snapshot."""
    reader, writer = os.pipe()

    def count():
        tier, seen = DiskTier(tmp_path, keep=1), []
        write(tier, 5)
        killing.at_call(-1, killing.killed, seen)
        write(tier, 10)
        number = len(seen)
        os.write(writer, number.to_bytes(4, "little"))

    assert forked.run(count) == 0
    return int.from_bytes(os.read(reader, 4), "little")


def test_a_kill_at_any_system_call_leaves_a_complete_snapshot(tmp_path):
    calls = calls_of_a_write(tmp_path / "counted")
    assert calls > 20
    seen = set()
    for number in range(calls):
        directory = tmp_path / str(number)
        write(DiskTier(directory, keep=1), 5)

        def write_and_die(directory=directory, number=number):
            tier = DiskTier(directory, keep=1)
            killing.at_call(number, killing.killed)
            write(tier, 10)

        assert forked.run(write_and_die) == -signal.SIGKILL
        tier = DiskTier(directory, keep=1)
        step = tier.newest(model=MODEL).manifest.step
        check_newest(tier, step)
        seen.add(step)
        write(tier, 15)
        # An empty hidden folder without a lock may be that of a writer that has just begun, and is removed later.
        hidden, *visible = sorted(os.listdir(directory), key=lambda name: name[0] != ".")
        assert not visible or not os.listdir(directory / hidden)
        assert (visible or [hidden]) == ["snapshot-0000000015-0"]
    assert seen == {5, 10}


def test_a_full_disk_keeps_the_snapshots_and_the_process(tmp_path):
    calls = calls_of_a_write(tmp_path / "counted")

    def write_without_space(directory, number):
        tier = DiskTier(directory, keep=1)
        write(tier, 5)
        killing.at_call(number, killing.no_space)
        try:
            write(tier, 10)
        except OSError as error:
            assert "No space left" in str(error)
        check_newest(tier, tier.newest(model=MODEL).manifest.step)
        write(tier, 15)
        check_newest(tier, 15)

    for number in range(calls):
        directory = tmp_path / str(number)
        assert forked.run(lambda directory=directory, number=number: write_without_space(directory, number)) == 0
        assert steps_in(directory) == [15]
