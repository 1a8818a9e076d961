"""The steps that a task has completed, in a small file that outlives the task.

The task records a number after each step. The launcher reads it after the task has failed, so that it can tell a task
that fails at the same step again and again from a task that makes progress.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import struct
import time
from pathlib import Path
from types import TracebackType

_MAGIC = b"tfdist progress1"
# A sequence number, the step, the time in nanoseconds since 1970, and the exclusive or of these three.
_SLOT = struct.Struct("<QQQQ")
_SIZE = len(_MAGIC) + 2 * _SLOT.size
# The check of a slot of zero bytes must not be valid.
_SALT = 0x7466_6469_7374_2121


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The last record of a task.

    Args:
        step: the training steps that were completed since the beginning of the training.
        recorded_at: the time of the record, in seconds since 1970, as in `time.time`.

    Example:
        >>> Progress(step=812, recorded_at=1_700_000_000.0).step
        812
    """

    step: int
    recorded_at: float


class ProgressFile:
    """Records the completed steps of this task, in a few microseconds each; a killed task loses no record.

    The two latest records are in two places of the file, so that a reader finds the last but one if the task was killed
    in the middle of writing the last.

    Args:
        path: the file, which is made if it does not exist. A file with records is continued.

    Raises:
        OSError: if the file cannot be made or written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ProgressFile(Path(folder, "worker-0.progress")) as file:
        ...         file.record(812)
        ...     read_progress(Path(folder, "worker-0.progress")).step
        812
    """

    def __init__(self, path: str | Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            data = os.pread(descriptor, _SIZE + 1, 0)
            if len(data) != _SIZE or not data.startswith(_MAGIC):
                # Every byte is written: on a full disk this raises an error here, whereas a write to a hole of a mapped
                # file would kill the process later.
                data = _MAGIC + bytes(_SIZE - len(_MAGIC))
                os.ftruncate(descriptor, 0)
                if os.pwrite(descriptor, data, 0) != _SIZE:
                    raise OSError(f"expected to write {_SIZE} bytes to {os.fspath(path)!r}, but the disk is full.")
            self._map = mmap.mmap(descriptor, _SIZE)
        finally:
            os.close(descriptor)
        found = _newest(data)
        self._sequence = 0 if found is None else found[0]

    def record(self, step: int) -> None:
        """Records that `step` training steps have been completed since the beginning of the training."""
        self._sequence += 1
        sequence, now = self._sequence, time.time_ns()
        place = len(_MAGIC) + (sequence % 2) * _SLOT.size
        _SLOT.pack_into(self._map, place, sequence, step, now, sequence ^ step ^ now ^ _SALT)

    def close(self) -> None:
        """Closes the file; it keeps its records."""
        self._map.close()

    def __enter__(self) -> ProgressFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_progress(path: str | os.PathLike[str]) -> Progress | None:
    """Returns the last record in a file; None if there is no such file, or no step was recorded in it.

    Example:
        >>> read_progress("/nowhere/worker-0.progress") is None
        True
    """
    try:
        data = Path(path).read_bytes()
    except OSError:
        return None
    found = _newest(data)
    return None if found is None else Progress(step=found[1], recorded_at=found[2] / 1e9)


def _newest(data: bytes) -> tuple[int, int, int] | None:
    """Returns the sequence number, step and time of the newest whole record."""
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return None
    slots = [_SLOT.unpack_from(data, len(_MAGIC) + number * _SLOT.size) for number in range(2)]
    whole = [(sequence, step, at) for sequence, step, at, check in slots if sequence ^ step ^ at ^ _SALT == check]
    return max(whole, default=None)
