"""Snapshots whose contents follow from their step, and the checks of what a reader finds."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.chaos_faults.fault import Found, Trouble
from tfdist.checkpoint.contributions import Contributions
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.manifest import BrokenSnapshotError
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.part import Part, index_of, size_of_values, write_part

MODEL = "chaos"
WORKERS = 2
# A writer locks its folder at once, so that an empty folder without a lock is removed only when it is old.
_OLD_SECONDS = 7200.0
_READS = 100


def part_of(step: int, worker: int) -> Part:
    """Returns the part of a worker, whose arrays follow from its step. Some parts are much larger than others."""
    numbers = np.random.default_rng([step, worker])
    size = (50, 2_000, 400_000, 900_000)[step % 4] + step
    values = {
        "weights": numbers.normal(size=size).astype("float32"),
        "rows": numbers.integers(0, 1 << 60, size=[3, step % 5]),
        "flags": numbers.random(7) < 0.5,
    }
    return Part(step=step, values=values, notes={"worker": worker, "epoch": step // 3})


def bytes_of(part: Part) -> memoryview:
    """Returns the bytes of a part."""
    buffer = memoryview(bytearray(size_of_values(part.values) + len(index_of(part))))
    return buffer[: write_part(part, buffer)]


def difference(part: Part, step: int, worker: int) -> str:
    """Returns how a part differs from the one of a step and worker, in words; "" if it does not."""
    expected = part_of(step, worker)
    if (part.step, dict(part.notes)) != (step, dict(expected.notes)):
        return f"expected step {step} and {expected.notes}, received step {part.step} and {part.notes}"
    if set(part.values) != set(expected.values):
        return f"expected the arrays {sorted(expected.values)}, received {sorted(part.values)}"
    for name, array in expected.values.items():
        got = part.values[name]
        if (got.dtype, got.shape) != (array.dtype, array.shape) or got.tobytes() != array.tobytes():
            return f"the array {name!r} of step {step} of worker {worker} has other values"
    return ""


@contextlib.contextmanager
def log_lines() -> Iterator[list[str]]:
    """Yields a list that receives the warnings of tfdist within the context."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("tfdist")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def read_disk(directory: Path, found: Found) -> tuple[int | None, list[str]]:
    """Reads the newest snapshot on disk as the next process would, and checks its contents.

    Args:
        directory: the directory of the snapshots.
        found: receives what is wrong.

    Returns:
        Its step, or None if there is none, and the warnings of the reader.
    """
    with log_lines() as lines:
        for _ in range(_READS):
            try:
                stored = DiskTier(directory, keep=2).newest(model=MODEL)
            except Exception as error:
                found.add(Trouble.WRONG, f"reading failed: {error!r}")
                return None, lines
            if stored is None:
                return None, lines
            step = stored.manifest.step
            try:
                parts = [stored.part(f"worker-{worker}") for worker in range(WORKERS)]
            except Exception as error:
                if isinstance(error, BrokenSnapshotError) and not stored.folder.exists():
                    # A living writer has removed it since, because it has written newer ones.
                    continue
                found.add(Trouble.TORN, f"{stored.folder.name} was chosen and cannot be read: {error!r}")
                return None, lines
            for worker, part in enumerate(parts):
                text = difference(part, step, worker)
                found.check(not text, f"{stored.folder.name} was loaded: {text}", Trouble.TORN)
            return step, lines
    found.add(Trouble.HANG, f"expected one of {_READS} reads to succeed during writes, received none")
    return None, lines


def read_memory(directory: Path, root: Path, found: Found) -> int | None:
    """Reads the newest part in memory as the next process would, checks all parts, and returns the newest step.

    Args:
        directory: the directory of the snapshots, which names the run.
        root: the folder that stands for shared memory.
        found: receives what is wrong.
    """
    try:
        tier = MemoryTier(str(directory), worker=0, root=root)
    except ValueError as error:
        found.add(Trouble.WRONG, f"the memory of a dead process is refused: {error}")
        return None
    try:
        parts = tier.parts()
        for part in parts:
            text = difference(part, part.step, 0)
            found.check(not text, f"a part in memory was offered: {text}", Trouble.TORN)
        newest = tier.newest()
        return None if newest is None else newest.step
    except Exception as error:
        found.add(Trouble.WRONG, f"reading the memory failed: {error!r}")
        return None
    finally:
        parts = newest = None
        tier.close()


def check_range(what: str, step: int | None, least: int, most: int, found: Found) -> None:
    """Checks that the newest step is neither older than the last complete one nor newer than the last one begun."""
    if not least <= (step or 0) <= most:
        expected = f"step {least}" if least == most else f"a step from {least} to {most}"
        found.add(Trouble.WRONG, f"expected the newest snapshot {what} to be of {expected}, received {step}")


def write_disk(directory: Path, step: int, *, keep: int = 2) -> None:
    """Writes a snapshot to the disk."""
    parts = {f"worker-{worker}": bytes_of(part_of(step, worker)) for worker in range(WORKERS)}
    DiskTier(directory, keep=keep).write(step, parts, model=MODEL)


def check_next_writer(directory: Path, step: int, found: Found) -> None:
    """Checks that the next writer succeeds, and leaves nothing of the writers before it.

    Args:
        directory: the directory of the snapshots.
        step: a step after all others.
        found: receives what is wrong.
    """
    Contributions(directory, 1).begin()
    write_disk(directory, step)
    hidden = _hidden(directory)
    with_files = [path.name for path in hidden if not path.is_dir() or any(path.iterdir())]
    found.check(not with_files, f"after the next writer, the directory still has {with_files}")
    for path in hidden:
        os.utime(path, (time.time() - _OLD_SECONDS,) * 2)
    write_disk(directory, step + 1)
    left = [path.name for path in _hidden(directory) if path.name not in with_files]
    found.check(not left, f"an hour later, the directory still has {left}")
    newest, _ = read_disk(directory, found)
    check_range("after the next writer", newest, step + 1, step + 1, found)
    names = sorted(path.name for path in directory.glob("snapshot-*"))
    found.check(len(names) == 2, f"expected the next writer to keep 2 snapshots, received {names}")


def check_next_memory(directory: Path, root: Path, step: int, found: Found) -> None:
    """Checks that the next process can use the memory, that it leaves nothing, and that it then gives all back."""
    tier = MemoryTier(str(directory), worker=0, root=root)
    try:
        tier.write(part_of(step, 0))
        newest = tier.newest()
        text = difference(newest, step, 0) if newest is not None else "there is none"
        found.check(not text, f"the part of the next process: {text}", Trouble.TORN)
        names = {path.name for folder in root.iterdir() for path in folder.iterdir()}
        left = sorted(names - {"lock", "run", "directory", "slot-0", "slot-1", "slot-2"})
        found.check(not left, f"a killed process has left {left} in shared memory, and the next one keeps them")
    finally:
        newest = None
        tier.clear()
    found.check(not any(root.iterdir()), "shared memory is not empty after it was cleared")


def _hidden(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.name.startswith(".") and path.name != ".run"]
