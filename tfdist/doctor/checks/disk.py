"""Disks: room in the shared directory, or the current one, and in the folder for temporary files."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence

from tfdist.doctor.finding import Finding, grade, size_text

CHECK = "disk"
WARN_BYTES = 5 << 30
FAIL_BYTES = 512 << 20
WARN_TEMPORARY_BYTES = 1 << 30
FAIL_TEMPORARY_BYTES = 64 << 20
WARN_FILES = 10_000
FAIL_FILES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Room:
    """The room on the file system of a folder.

    Args:
        path: the folder.
        free: how many bytes this user may still write.
        files: how many files may still be made; None without a limit.
        is_temporary: whether the folder is that of temporary files.
    """

    path: str
    free: int
    files: int | None = None
    is_temporary: bool = False


def gather(directory: str | None) -> tuple[Room, ...]:
    """Returns the room in a directory, or in the current folder, and in the folder for temporary files.

    Args:
        directory: the shared directory; None is the current folder. The check of the directory says if it is not there.

    Raises:
        OSError: if a folder cannot be read.
    """
    temporary = dataclasses.replace(room_of(tempfile.gettempdir()), is_temporary=True)
    try:
        return room_of(directory or os.getcwd()), temporary
    except (FileNotFoundError, NotADirectoryError):
        return (temporary,)


def room_of(path: str) -> Room:
    """Returns the room on the file system of a folder.

    Raises:
        OSError: if the folder does not exist or cannot be read.
    """
    found = os.statvfs(path)
    # Some file systems do not count files: btrfs says 0, CephFS says -1.
    counts_files = found.f_files > 0 and found.f_favail >= 0
    return Room(path=path, free=found.f_bavail * found.f_frsize, files=found.f_favail if counts_files else None)


def decide(tasks: Sequence[str], room: Room) -> Finding:
    """Returns the finding for the tasks of one host.

    Args:
        tasks: the tasks of the host.
        room: what the first of them found.

    Example:
        >>> decide(["worker 0"], Room(path="/data", free=80 << 30)).text
        '80.0 GiB are free in /data'
        >>> full = decide(["worker 0"], Room(path="/data", free=100 << 20, files=3))
        >>> full.verdict, full.text
        ('fail', '100 MiB and 3 files are free in /data')
        >>> decide(["worker 0"], Room(path="/tmp", free=100 << 20, is_temporary=True)).verdict
        'warn'
    """
    least = (WARN_TEMPORARY_BYTES, FAIL_TEMPORARY_BYTES) if room.is_temporary else (WARN_BYTES, FAIL_BYTES)
    verdicts = [grade(room.free, warn=least[0], fail=least[1])]
    text = f"{size_text(room.free)} are free in {room.path}"
    if room.files is not None:
        verdicts.append(grade(room.files, warn=WARN_FILES, fail=FAIL_FILES))
        if verdicts[-1] != "pass":
            text = f"{size_text(room.free)} and {room.files} files are free in {room.path}"
    verdict = max(verdicts, key=("pass", "warn", "fail").index)
    if verdict == "pass":
        return Finding(check=CHECK, task=", ".join(tasks), verdict=verdict, text=text)
    elsewhere = "set TMPDIR to another folder" if room.is_temporary else "choose another directory"
    return Finding(
        check=CHECK,
        task=", ".join(tasks),
        verdict=verdict,
        text=text,
        action=f"remove files or {elsewhere}; {size_text(least[0])} or more are good",
    )


def unreadable(tasks: Sequence[str], error: str) -> Finding:
    """Returns the finding for the tasks of a host on which a folder cannot be read.

    Args:
        tasks: the tasks of the host.
        error: why not.
    """
    action = "check that the folder exists, and that its file system answers"
    return Finding(check=CHECK, task=", ".join(tasks), verdict="warn", text=f"room is unknown: {error}", action=action)
