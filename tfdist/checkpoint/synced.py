"""Writes files and waits until they are on the disk. This file is independent of TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

from tfdist.checkpoint.manifest import StoredPart, checksum

_CHUNK = 1 << 24


def write_synced(path: Path, data: memoryview | bytes) -> StoredPart:
    """Writes a new file, waits until it is on the disk, and returns its size and checksum.

    Args:
        path: name of a file that does not exist.
        data: the content.

    Raises:
        OSError: if the disk is full, for example.
    """
    rest = memoryview(data)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while rest:
            rest = rest[os.write(handle, rest[:_CHUNK]) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    return StoredPart(bytes=len(data), crc32=checksum(data))


def sync_folder(folder: Path) -> None:
    """Waits until the names in a folder are on the disk.

    Args:
        folder: the folder.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
