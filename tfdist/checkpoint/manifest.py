"""Manifest: the plain values that describe a snapshot on disk, and say whether its files are complete."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
NAME = "manifest.json"
_CHUNK = 1 << 24


class BrokenSnapshotError(ValueError):
    """A snapshot whose files are missing, torn or changed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPart:
    """The file of one worker.

    Attributes:
        bytes: number of its bytes.
        crc32: checksum of its bytes.
    """

    bytes: int
    crc32: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes a snapshot.

    Attributes:
        step: number of steps since the beginning of the run.
        model: fingerprint of the names, shapes and dtypes of everything that the snapshot contains.
        finished: whether the run has ended with this snapshot.
        made_by: versions of what made the snapshot, by name, such as "tensorflow".
        parts: the files of the workers, by name.

    Example:
        >>> from tfdist.checkpoint.manifest import Manifest, StoredPart
        >>> manifest = Manifest(step=3, model="ab12", parts={"worker-0": StoredPart(bytes=10, crc32=7)})
        >>> Manifest.from_json(manifest.to_json()) == manifest
        True
    """

    step: int
    model: str
    finished: bool = False
    made_by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parts: Mapping[str, StoredPart]

    def to_json(self) -> str:
        """Returns the text of the manifest."""
        values = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.dumps({**values, "crc32": _checksum_of(values)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Returns the manifest that a text describes.

        Args:
            text: what `to_json` returned.

        Raises:
            BrokenSnapshotError: if the text is another one.
        """
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("crc32") != _checksum_of(values):
                raise ValueError("another checksum than when it was written")
            if values.pop("format") != FORMAT:
                raise ValueError("another format")
            values["parts"] = {name: StoredPart(**part) for name, part in values["parts"].items()}
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BrokenSnapshotError(f"expected a manifest of format {FORMAT}, received {error!r}") from error


def checksum(data: memoryview | bytes) -> int:
    """Returns the CRC-32 of some bytes. Other threads run meanwhile.

    Args:
        data: the bytes.
    """
    found = 0
    for start in range(0, len(data), _CHUNK):
        found = zlib.crc32(data[start : start + _CHUNK], found)
    return found


def _checksum_of(values: Mapping[str, Any]) -> int:
    return checksum(json.dumps(values, sort_keys=True).encode())


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a snapshot, after comparing the sizes of its files with it.

    Args:
        folder: the snapshot.

    Raises:
        BrokenSnapshotError: if a file is missing or has another size.
    """
    try:
        manifest = Manifest.from_json((folder / NAME).read_text())
        for name, part in manifest.parts.items():
            size = (folder / name).stat().st_size
            if size != part.bytes:
                raise BrokenSnapshotError(f"{name} has {size:,} bytes instead of {part.bytes:,}")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenSnapshotError(str(error)) from error
    return manifest


def read_checked(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Returns the content of a file of a snapshot.

    Args:
        folder: the snapshot.
        manifest: its manifest.
        name: name of the file.

    Raises:
        BrokenSnapshotError: if the checksum is another one.
    """
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise BrokenSnapshotError(str(error)) from error
    if checksum(data) != manifest.parts[name].crc32:
        raise BrokenSnapshotError(f"{name} has another checksum than when it was written")
    return data
