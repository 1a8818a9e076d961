"""When and where an interrupted fit has kept its snapshots, and which directory is refused."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any

import pytest
import tensorflow as tf

import tfdist
from tests.checkpoint.fits.interrupted import (
    BATCH,
    EPOCHS,
    Interrupt,
    InterruptionError,
    check,
    data,
    fit,
    results,
)
from tfdist.checkpoint import AutoResume, fits
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.following import SnapshotFollower
from tfdist.checkpoint.in_use import NAME, InUse
from tfdist.checkpoint.memory import MemoryTier, folder_of
from tfdist.checkpoint.snapshots import Snapshots
from tfdist.checkpoint.writer import BackgroundWriter

keras = tf.keras


def test_a_training_whose_end_is_in_memory_only_is_finished_on_disk_by_the_next_start(strategy, tmp_path, monkeypatch):
    directory, write = tmp_path / "run", DiskTier.write

    def full(self: DiskTier, step: int, parts: Any, *, finished: bool = False, **options: Any) -> Any:
        if finished:
            raise OSError(errno.ENOSPC, "no space left")
        return write(self, step, parts, finished=finished, **options)

    monkeypatch.setattr(DiskTier, "write", full)
    _, expected = fit(strategy, AutoResume(str(directory), every_steps=3))
    assert folder_of(str(directory), 0).exists()
    monkeypatch.setattr(DiskTier, "write", write)
    fits._ended.clear()
    _, found = fit(strategy, AutoResume(str(directory), every_steps=3))
    assert found == expected
    assert SnapshotFollower(directory).ended() is not None
    assert not folder_of(str(directory), 0).exists()


def test_shared_memory_that_is_full_keeps_the_snapshots_before(tmp_path, monkeypatch, caplog):
    directory, write = tmp_path / "run", MemoryTier.write

    def full(self: MemoryTier, part: Any) -> None:
        if part.step > 3:
            raise OSError(errno.ENOSPC, "no space left")
        write(self, part)

    strategy = tfdist.create_strategy("one_device")
    _, expected = fit(strategy)
    monkeypatch.setattr(MemoryTier, "write", full)
    monkeypatch.setattr(DiskTier, "write", lambda *arguments, **options: None)
    with pytest.raises(InterruptionError):
        fit(strategy, Interrupt(train=6), AutoResume(str(directory), every_steps=1))
    assert caplog.text.count("is not kept in shared memory") == 1
    monkeypatch.undo()
    _, found = fit(strategy, AutoResume(str(directory), every_steps=1))
    assert "goes on from the snapshot of step 3 " in caplog.text
    assert found == expected


@pytest.mark.full
def test_a_second_fit_has_snapshots_of_its_own(strategy, tmp_path):
    def two_fits(interruption: dict[str, int] | None, *, auto: bool) -> dict[str, Any]:
        def callbacks() -> list[Any]:
            return [AutoResume(str(tmp_path / "run"), every_steps=3)] if auto else []

        model, _ = fit(strategy, *callbacks(), epochs=2)
        x, y = data()
        others = [Interrupt(**interruption)] if interruption else []
        history = model.fit(x, y, epochs=3, batch_size=BATCH, verbose=0, callbacks=[*others, *callbacks()])
        return results(model, history)

    expected = two_fits(None, auto=False)
    with pytest.raises(InterruptionError):
        two_fits({"train": 11}, auto=True)
    # A new process begins with the first fit again.
    fits._ended.clear()
    assert two_fits(None, auto=True) == expected


@pytest.mark.parametrize("memory", [True, False])
def test_a_directory_that_another_training_uses_is_refused(memory, tmp_path):
    other = InUse(str(tmp_path))
    other.begin()
    resume = AutoResume(str(tmp_path), memory=memory)
    with pytest.raises(ValueError, match=r"expected no other training in the directory .* that still runs; wait for"):
        fit(tfdist.create_strategy("one_device"), resume)
    other.end()
    fit(tfdist.create_strategy("one_device"), AutoResume(str(tmp_path), memory=memory))
    assert not (tmp_path / NAME).exists()


@pytest.fixture
def no_reservation(monkeypatch):
    """The thread that writes may still be reserving memory at the first snapshot, which then is in memory only."""
    monkeypatch.setattr(Snapshots, "prepare", lambda self, part: None)


@pytest.mark.usefixtures("no_reservation")
def test_the_last_snapshot_is_in_memory_while_the_one_before_is_written(tmp_path, monkeypatch):
    # A process that is killed in its grace period loses no step if shared memory has the last one.
    store, keep_in_memory = DiskTier.write, MemoryTier.write
    last, in_memory, seen = EPOCHS * 7, [], []
    is_writing = threading.Event()

    def slow(self: DiskTier, step: int, parts: Any, **options: Any) -> Any:
        is_writing.set()
        end = time.monotonic() + 60
        while step < last and last not in in_memory and time.monotonic() < end:
            time.sleep(0.01)
        seen.append((step, last in in_memory))
        return store(self, step, parts, **options)

    def remember(self: MemoryTier, part: Any) -> None:
        # The thread that writes takes the newest snapshot, which would be another one if it began late.
        assert part.step == 3 or is_writing.wait(60)
        keep_in_memory(self, part)
        in_memory.append(part.step)

    monkeypatch.setattr(DiskTier, "write", slow)
    monkeypatch.setattr(MemoryTier, "write", remember)
    fit(tfdist.create_strategy("one_device"), AutoResume(str(tmp_path / "run"), every_steps=3))
    assert seen == [(3, True), (last, True)]


@pytest.mark.usefixtures("no_reservation")
def test_a_first_write_that_costs_much_is_the_last_one_before_the_end(tmp_path, monkeypatch):
    store, steps = DiskTier.write, []

    class Waits(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # The first snapshot, after ten steps, is on the disk before the second one is due.
            if self.model.optimizer.iterations.numpy() == 15:
                end = time.monotonic() + 60
                while not steps and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(0.5)

    def count(self: DiskTier, step: int, parts: Any, **options: Any) -> Any:
        written = store(self, step, parts, **options)
        steps.append(step)
        return written

    monkeypatch.setattr(DiskTier, "write", count)
    measured = property(lambda self: 1000.0 if steps else 0.0, lambda self, seconds: None)
    monkeypatch.setattr(BackgroundWriter, "processor_seconds", measured, raising=False)
    fit(tfdist.create_strategy("one_device"), Waits(), AutoResume(str(tmp_path / "run")), epochs=10)
    assert steps == [10, 70]


@pytest.mark.full
def test_the_callback_chooses_its_intervals_by_their_cost(strategy, tmp_path, caplog):
    check(strategy, tmp_path / "run", at=[{"train": 12}], resume={"every_steps": None})
    assert "a snapshot every" in caplog.text
