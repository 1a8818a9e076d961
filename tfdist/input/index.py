"""The index beside TFRecord files: the number of records of each file, and the byte offset of every 64th record."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

SUFFIX = ".index.json"
# Records between two entries of an index. A start in the middle of a file reads fewer than this many records in vain.
GRANULE = 64
# TFRecord framing: the length (8 bytes), a checksum of the length, the data, a checksum of the data.
_HEADER_BYTES, _FOOTER_BYTES = 12, 4
_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordIndex:
    """The index of a TFRecord file.

    Attributes:
        records: number of records in the file.
        size: size of the file in bytes.
        offsets: byte at which every 64th record begins; empty for a GZIP file, which must be read from its beginning.
    """

    records: int
    size: int
    offsets: tuple[int, ...] = ()


class IndexBuilder:
    """Builds the index of a file from the lengths of its records, in the order of the file."""

    def __init__(self) -> None:
        self._records, self._size, self._offsets = 0, 0, []  # type: int, int, list[int]

    def add(self, length: int) -> None:
        """Adds the next record, `length` bytes long without its framing."""
        if self._records % GRANULE == 0:
            self._offsets.append(self._size)
        self._records += 1
        self._size += _HEADER_BYTES + length + _FOOTER_BYTES

    def index(self) -> RecordIndex:
        """Returns the index of the records added so far."""
        return RecordIndex(records=self._records, size=self._size, offsets=tuple(self._offsets))


def write_index(prefix: str, indexes: dict[str, RecordIndex]) -> str:
    """Writes the indexes of the files of one folder to `prefix.index.json`, atomically, and returns its name.

    Args:
        prefix: path with which the names of the files begin.
        indexes: index of each file, by the file's name.
    """
    files = {os.path.basename(name): dataclasses.asdict(index) for name, index in indexes.items()}
    name = prefix + SUFFIX
    with tf.io.gfile.GFile(name + ".part", "w") as file:
        json.dump({"version": 1, "granule": GRANULE, "files": files}, file, separators=(",", ":"))
    tf.io.gfile.rename(name + ".part", name, overwrite=True)
    return name


def read_indexes(names: Sequence[str]) -> dict[str, RecordIndex]:
    """Returns the indexes of the named files, from the `*.index.json` files in their folders.

    A file without an index has no entry in the result.

    Raises:
        ValueError: if the content of an index file is not an index.
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
            f"expected an index of TFRecord files in {path!r}, received other content ({error}); delete the index, "
            "so that the records are counted."
        ) from error


def is_gzip(name: str) -> bool:
    """Returns whether a file begins with the two bytes of a GZIP file."""
    # A local file is opened by Python, because GFile would read half a megabyte.
    with Path(name).open("rb") if Path(name).is_file() else tf.io.gfile.GFile(name, "rb") as file:
        return bool(file.read(2) == b"\x1f\x8b")


def scan(name: str) -> RecordIndex:
    """Returns the index of an uncompressed TFRecord file, from the lengths of its records.

    Long records are skipped: only the bytes with their lengths are read.

    Raises:
        ValueError: if the file is truncated or is not a TFRecord file; the message names the record.
    """
    builder = IndexBuilder()
    with tf.io.gfile.GFile(name, "rb") as file:
        size = file.size()
        # `block` holds the bytes of the file from `block_start` on; the next record begins at `position`.
        block, block_start, position = b"", 0, 0
        while position < size:
            if position + _HEADER_BYTES > block_start + len(block):
                file.seek(position)
                block_start, block = position, file.read(_BLOCK_BYTES)
            if position + _HEADER_BYTES > block_start + len(block):
                raise _truncated(name, builder, position, size)
            (length,) = struct.unpack_from("<Q", block, position - block_start)
            if length > size - position - _HEADER_BYTES - _FOOTER_BYTES:
                raise _truncated(name, builder, position, size)
            builder.add(length)
            position += _HEADER_BYTES + length + _FOOTER_BYTES
    return builder.index()


def _truncated(name: str, builder: IndexBuilder, position: int, size: int) -> ValueError:
    return ValueError(
        f"expected complete records in {name!r}, received {size} bytes that end within record "
        f"{builder.index().records}, which begins at byte {position}; write the file again, or leave it out."
    )


def count(name: str, *, compression: str) -> RecordIndex:
    """Returns the index of a file by reading the lengths of its records, or the whole file if it is compressed.

    Args:
        name: path of a TFRecord file.
        compression: "" or "GZIP".

    Raises:
        ValueError: if a record is truncated or corrupt; the message names the file and the record.
    """
    if not compression:
        return scan(name)
    records = 0
    try:
        for batch in tf.data.TFRecordDataset(name, compression_type=compression).batch(1024):
            records += int(tf.shape(batch)[0])
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError) as error:
        raise ValueError(
            f"expected complete records in {name!r}, received a truncated or corrupt record after the first {records}; "
            "write the file again, or leave it out."
        ) from error
    return RecordIndex(records=records, size=tf.io.gfile.stat(name).length)
