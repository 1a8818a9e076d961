"""The index beside TFRecord files: how many records each holds, and where every 64th of them begins."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

SUFFIX = ".index.json"
# Records from one entry to the next: a start anywhere reads less than this many records too many.
GRANULE = 64
# Of TensorFlow's framing of a record: its length and the checksum of that before it, a checksum behind it.
_BEFORE, _BEHIND = 12, 4
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """What is known of a TFRecord file.

    Attributes:
        records: how many it holds.
        size: of the file in bytes.
        offsets: byte at which every 64th record begins; empty for a file that cannot be entered in the middle (GZIP).
    """

    records: int
    size: int
    offsets: tuple[int, ...] = ()


class IndexBuilder:
    """Builds the index of a file whose records are met one after another."""

    def __init__(self) -> None:
        self._records, self._size, self._offsets = 0, 0, []  # type: int, int, list[int]

    def add(self, length: int) -> None:
        """Notes a record of so many bytes."""
        if self._records % GRANULE == 0:
            self._offsets.append(self._size)
        self._records += 1
        self._size += _BEFORE + length + _BEHIND

    def index(self) -> RecordIndex:
        """Returns what was noted."""
        return RecordIndex(records=self._records, size=self._size, offsets=tuple(self._offsets))


def write_index(prefix: str, indexes: dict[str, RecordIndex]) -> str:
    """Writes the indexes of files of one folder to `prefix.index.json`, whole or not at all; returns its name.

    Args:
        prefix: path that the files' names begin with.
        indexes: by the files' names.
    """
    files = {os.path.basename(name): dataclasses.asdict(index) for name, index in indexes.items()}
    name = prefix + SUFFIX
    with tf.io.gfile.GFile(name + ".part", "w") as file:
        json.dump({"version": 1, "granule": GRANULE, "files": files}, file, separators=(",", ":"))
    tf.io.gfile.rename(name + ".part", name, overwrite=True)
    return name


def read_indexes(names: Sequence[str]) -> dict[str, RecordIndex]:
    """Returns what the indexes in the folders of the files know of them.

    Raises:
        ValueError: for an index that cannot be read.
    """
    wanted: dict[str, dict[str, str]] = {}
    for name in names:
        wanted.setdefault(os.path.dirname(name), {})[os.path.basename(name)] = name
    found = {}
    for folder, files in wanted.items():
        for path in sorted(tf.io.gfile.glob(os.path.join(folder, "*" + SUFFIX))):
            for base, index in _read(path).items():
                if base in files:
                    found[files[base]] = index
    return found


def _read(path: str) -> dict[str, RecordIndex]:
    try:
        with tf.io.gfile.GFile(path) as file:
            content = json.load(file)
        if content["version"] != 1 or content["granule"] != GRANULE:
            raise KeyError("version")
        return {
            name: RecordIndex(records=index["records"], size=index["size"], offsets=tuple(index["offsets"]))
            for name, index in content["files"].items()
        }
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"expected an index of TFRecord files in {path!r}, received something else ({error}); delete it, and it is "
            "counted anew."
        ) from error


def is_gzip(name: str) -> bool:
    """Whether a file begins as GZIP files do."""
    # GFile reads half a megabyte ahead.
    with Path(name).open("rb") if Path(name).is_file() else tf.io.gfile.GFile(name, "rb") as file:
        return bool(file.read(2) == b"\x1f\x8b")


def scan(name: str) -> RecordIndex:
    """Counts the records of an uncompressed TFRecord file from their lengths; of long ones it reads nothing else.

    Raises:
        ValueError: names the record at which the file is truncated or is no TFRecord file.
    """
    builder = IndexBuilder()
    with tf.io.gfile.GFile(name, "rb") as file:
        size = file.size()
        block, first, at = b"", 0, 0
        while at < size:
            if at + _BEFORE > first + len(block):
                file.seek(at)
                first, block = at, file.read(_BLOCK)
            if at + _BEFORE > first + len(block):
                raise _truncated(name, builder, at, size)
            (length,) = struct.unpack_from("<Q", block, at - first)
            if length > size - at - _BEFORE - _BEHIND:
                raise _truncated(name, builder, at, size)
            builder.add(length)
            at += _BEFORE + length + _BEHIND
    return builder.index()


def _truncated(name: str, builder: IndexBuilder, at: int, size: int) -> ValueError:
    return ValueError(
        f"expected whole records in {name!r}, received {size} bytes that end within record {builder.index().records}, "
        f"which begins at byte {at}; write the file again, or leave it out."
    )


def count(name: str, *, compression: str) -> RecordIndex:
    """Returns the index of a file that has none, from the lengths of its records or by reading it.

    Raises:
        ValueError: names the file and the record that is truncated or corrupt.
    """
    if not compression:
        return scan(name)
    records = 0
    try:
        for batch in tf.data.TFRecordDataset(name, compression_type=compression).batch(1024):
            records += int(tf.shape(batch)[0])
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise ValueError(
            f"expected whole records in {name!r}, received a truncated or corrupt one after record {records}; write it "
            "again, or leave it out."
        ) from error
    return RecordIndex(records=records, size=tf.io.gfile.stat(name).length)
