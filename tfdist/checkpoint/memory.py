"""MemoryTier: keeps the newest parts of one worker in shared memory, which outlives the process.

A part is written to a slot that does not contain the newest part, and becomes the newest part when it is complete. A
process that is killed while it writes therefore leaves the part before. This file is independent of TensorFlow.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tfdist._log import get_logger
from tfdist.checkpoint.part import (
    BrokenPartError,
    Part,
    index_of,
    number_of,
    read_part,
    size_of_values,
    whole_part,
    write_part,
)
from tfdist.checkpoint.private_folder import is_private, make_private
from tfdist.checkpoint.run_name import run_of

SHARED_MEMORY = Path("/dev/shm")
# The newest part, the part that is being written, and a part that is being copied to the disk.
_SLOTS = 3
_ROOM_FOR_INDEX = 1 << 20
# Beginning of the names of slots that are being made.
_NEW = "new-"


class MemoryTier:
    """The parts of one worker in the shared memory of its host.

    Only one process at a time may use the parts of a worker. `close` ends the use and keeps the parts; `clear` removes
    them.

    Args:
        directory: the directory of the snapshots on disk, which names the run.
        worker: index of the worker.
        root: folder of shared memory.

    Raises:
        ValueError: if another process uses the parts of this worker.
        OSError: if there is no shared memory, or if another user has made a folder of this name.

    Example:
        >>> import numpy as np, tempfile
        >>> from tfdist.checkpoint.memory import MemoryTier
        >>> from tfdist.checkpoint.part import Part
        >>> tier = MemoryTier(tempfile.mkdtemp(), worker=0)
        >>> tier.write(Part(step=3, values={"weights": np.ones(2)}, notes={}))
        >>> tier.newest().step
        3
        >>> tier.clear()
    """

    def __init__(self, directory: str, *, worker: int, root: Path = SHARED_MEMORY) -> None:
        remove_forgotten(root)
        self._folder = folder_of(directory, worker, root=root)
        make_private(self._folder)
        self._lock = _locked(self._folder / "lock", directory)
        self._mapped: dict[int, mmap.mmap] = {}
        self._newest: int | None = None
        self._pinned: int | None = None
        self._is_closed = False
        self._guard, self._allocation = threading.Lock(), threading.Lock()
        try:
            self._begin_run(directory)
            # The place of each slot's part in the order of writing; 0 for a slot without a complete part.
            self._numbers = [self._number(slot) for slot in range(_SLOTS)]
        except OSError:
            self.close()
            raise
        self._newest = self._numbers.index(max(self._numbers)) if any(self._numbers) else None

    def _begin_run(self, directory: str) -> None:
        """Removes what a killed process was making, and the parts of another run, whose directory had the same name."""
        for path in self._folder.glob(f"{_NEW}*"):
            path.unlink(missing_ok=True)
        note, run = self._folder / "run", run_of(directory)
        if not note.exists() or note.read_text() != run:
            for slot in range(_SLOTS):
                self._path(slot).unlink(missing_ok=True)
            # Only written for a new run: a process that is killed here must not leave empty notes beside the parts.
            (self._folder / "directory").write_text(os.path.realpath(directory))
            note.write_text(run)

    def write(self, part: Part) -> None:
        """Keeps a part as the newest one. Each array is copied once.

        Args:
            part: the part; its step may be any.

        Raises:
            OSError: if the shared memory is full. The newest part before is kept.
        """
        index = index_of(part)
        with self._guard:
            # The oldest one: another worker may be killed before it has a part of this step, too.
            free = [slot for slot in range(_SLOTS) if slot not in (self._newest, self._pinned)]
            slot = min(free, key=lambda slot: self._numbers[slot])
            number, self._numbers[slot] = max(self._numbers) + 1, 0
        room = size_of_values(part.values) + len(index)
        with memoryview(self._buffer(slot, room)) as buffer:
            write_part(part, buffer, index, number=number)
        with self._guard:
            self._newest, self._numbers[slot] = slot, number

    def reserve(self, room: int) -> None:
        """Allocates the memory for parts, so that no later `write` waits for it; may run in a thread.

        Args:
            room: number of bytes of a part, from `size_of_values`.

        Raises:
            OSError: if the shared memory is full.
        """
        for slot in range(_SLOTS):
            with self._allocation:
                # A training that fails closes the memory while a thread reserves it.
                if self._is_closed:
                    return
                if slot not in self._mapped:
                    self._allocate(slot, room)

    def newest(self) -> Part | None:
        """Returns the newest part, or None. Its arrays are valid until the next call of `write`, `clear` or `close`."""
        return None if self._newest is None else read_part(memoryview(self._mapped[self._newest]))

    def parts(self) -> list[Part]:
        """Returns all complete parts, the newest first: at least the two that were written last."""
        slots = sorted((slot for slot in self._mapped if self._numbers[slot]), key=lambda slot: -self._numbers[slot])
        return [read_part(memoryview(self._mapped[slot])) for slot in slots]

    @contextlib.contextmanager
    def pinned(self) -> Iterator[memoryview]:
        """Yields the bytes of the newest part, which stay as they are within the context; `write` may be called.

        Raises:
            ValueError: if there is no part, or if another context has pinned one.
        """
        with self._guard:
            if self._newest is None or self._pinned is not None:
                raise ValueError("expected a part that is not pinned, received none.")
            self._pinned = self._newest
        try:
            yield whole_part(memoryview(self._mapped[self._pinned]))
        finally:
            with self._guard:
                self._pinned = None

    def close(self) -> None:
        """Ends the use of the parts, which stay in shared memory for the next process."""
        self._unmap()
        os.close(self._lock)

    def clear(self) -> None:
        """Removes all parts from shared memory, and ends their use."""
        self._unmap()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)

    def _unmap(self) -> None:
        with self._allocation:
            self._is_closed = True
            for mapped in self._mapped.values():
                # Arrays that share the memory of a slot keep it until they are gone.
                with contextlib.suppress(BufferError):
                    mapped.close()
            self._mapped.clear()

    def _number(self, slot: int) -> int:
        """Returns the number of the part in a slot in the order of writing; 0 without a complete part."""
        try:
            if not self._path(slot).stat().st_size:
                return 0
            self._map(slot)
            return number_of(memoryview(self._mapped[slot]))
        except (FileNotFoundError, BrokenPartError):
            return 0

    def _buffer(self, slot: int, room: int) -> mmap.mmap:
        """Returns the memory of a slot, after making it larger if it is too small."""
        with self._allocation:
            if slot in self._mapped and len(self._mapped[slot]) >= room:
                return self._mapped[slot]
            if slot in self._mapped:
                with contextlib.suppress(BufferError):
                    self._mapped.pop(slot).close()
            self._allocate(slot, room)
            return self._mapped[slot]

    def _allocate(self, slot: int, room: int) -> None:
        # A new file, since arrays may share the memory of the old one.
        handle, path = tempfile.mkstemp(dir=self._folder, prefix=_NEW)
        try:
            os.posix_fallocate(handle, 0, room + _ROOM_FOR_INDEX)
            os.replace(path, self._path(slot))
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(handle)
        self._map(slot)

    def _map(self, slot: int) -> None:
        with self._path(slot).open("r+b") as file:
            # Populated now, so that no later step waits for the memory.
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            self._mapped[slot] = mmap.mmap(file.fileno(), 0, flags)

    def _path(self, slot: int) -> Path:
        return self._folder / f"slot-{slot}"


def folder_of(directory: str, worker: int, *, root: Path = SHARED_MEMORY) -> Path:
    """Returns the folder in shared memory of a worker's parts.

    Args:
        directory: the directory of the snapshots on disk, which names the run.
        worker: index of the worker.
        root: folder of shared memory.
    """
    run = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:16]
    return root / f"tfdist-{os.getuid()}-{run}-{worker}"


def remove_forgotten(root: Path = SHARED_MEMORY) -> list[str]:
    """Removes parts of runs whose directory no longer exists, and returns the names of their folders.

    Args:
        root: folder of shared memory.
    """
    removed = []
    for folder in sorted(root.glob(f"tfdist-{os.getuid()}-*")):
        note = folder / "directory"
        try:
            if not is_private(folder) or os.path.exists(note.read_text()) or not _remove_unlocked(folder):
                continue
        except OSError:
            continue
        get_logger().info("removed the snapshots in %s, whose run no longer exists", folder)
        removed.append(folder.name)
    return removed


def remove_unused(directory: str, *, root: Path = SHARED_MEMORY) -> None:
    """Removes the parts on this host of all workers of a run that no process uses.

    Args:
        directory: the directory of the snapshots on disk, which names the run.
        root: folder of shared memory.
    """
    for folder in root.glob(folder_of(directory, 0, root=root).name.removesuffix("0") + "*"):
        if is_private(folder):
            _remove_unlocked(folder)


def _remove_unlocked(folder: Path) -> bool:
    try:
        lock = _locked(folder / "lock", "")
    except (OSError, ValueError):
        return False
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
    return True


def _locked(path: Path, directory: str) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(
            f"expected no other training in the directory {directory!r}, received one on this host that still runs; "
            "wait for its end, or choose another directory."
        ) from None
    return lock
