"""Writes TFRecord files with an index beside them, and counts the records of TFRecord files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import tensorflow as tf

from tfdist._paths import text_of_path
from tfdist.input.find import Files, compression_of, count_files, find_files
from tfdist.input.index import IndexBuilder, RecordIndex, write_index
from tfdist.input.read import Source


def write_tfrecords(
    examples: Iterable[bytes | str | tf.Tensor],
    prefix: str | os.PathLike[str],
    *,
    num_shards: int,
    compression: str | None = None,
) -> list[str]:
    """Writes serialized examples to the files `prefix-00000-of-0000N.tfrecord` and so on, and returns their names.

    The examples go to the files in turn: the first to file 0, the second to file 1, and so on. The file
    `prefix.index.json` beside them holds the number of records of each file and the byte at which every 64th record
    begins, so that distribute_files need not count records and can start in the middle of a file.

    Args:
        examples: serialized records, such as tf.train.Example protos. A str is written as UTF-8.
        prefix: path with which the names of the files begin. Its folder is created if it does not exist.
        num_shards: number of files to write.
        compression: "GZIP", or None or "" for none. Reading can start in the middle of uncompressed files only.

    Returns:
        The names of the files, in order.

    Raises:
        ValueError: if num_shards is less than 1, if compression has another value, if there are files of the same
            prefix with another number of shards, or if a record is neither bytes nor text.

    Example:
        >>> import tempfile
        >>> from tfdist.input import count_records, write_tfrecords
        >>> files = write_tfrecords([b"a", b"b", b"c"], tempfile.mkdtemp() + "/letters", num_shards=2)
        >>> [file.rpartition("/")[2] for file in files], count_records(files)
        (['letters-00000-of-00002.tfrecord', 'letters-00001-of-00002.tfrecord'], 3)
    """
    if num_shards < 1:
        raise ValueError(f"expected num_shards to be at least 1, received {num_shards}.")
    if compression not in (None, "", "GZIP"):
        raise ValueError(f"expected compression to be 'GZIP', '' or None, received {compression!r}.")
    prefix = text_of_path(prefix)
    tf.io.gfile.makedirs(os.path.dirname(prefix) or ".")
    _check_no_other_set(prefix, num_shards)
    names = [f"{prefix}-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]
    builders = [IndexBuilder() for _ in names]
    writers = [tf.io.TFRecordWriter(name, compression) for name in names]
    try:
        for i, example in enumerate(examples):
            record = _bytes_of(example)
            writers[i % num_shards].write(record)
            builders[i % num_shards].add(len(record))
    finally:
        for writer in writers:
            writer.close()
    indexes = {name: builder.index() for name, builder in zip(names, builders, strict=True)}
    if compression:
        indexes = {
            name: RecordIndex(records=index.records, size=tf.io.gfile.stat(name).length)
            for name, index in indexes.items()
        }
    write_index(prefix, indexes)
    return names


def _check_no_other_set(prefix: str, num_shards: int) -> None:
    """Raises ValueError if there are files of another number of shards, which a pattern would match as well."""
    folder, base = os.path.split(prefix)
    others = re.compile(re.escape(base) + r"-\d{5,}-of-(\d{5,})\.tfrecord")
    for name in sorted(tf.io.gfile.listdir(folder or ".")):
        match = others.fullmatch(name)
        if match is not None and int(match[1]) != num_shards:
            raise ValueError(
                f"expected no files of another number of shards than {num_shards} beside {prefix!r}, received "
                f"{name!r}; delete the old files, or choose another prefix."
            )


def _bytes_of(example: bytes | str | tf.Tensor) -> bytes:
    value = example.numpy() if isinstance(example, tf.Tensor) else example
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise ValueError(
            f"expected serialized records of type bytes, received {type(example).__name__}; serialize each record, for "
            "example with tf.io.serialize_tensor."
        )
    return bytes(value)


def count_records(files: Files) -> int:
    """Returns the number of records in TFRecord files, from the index beside them or by counting.

    Args:
        files: a pattern, or names.

    Raises:
        ValueError: if there are no such files, or if a file is truncated or corrupt.

    Example:
        >>> import tempfile
        >>> from tfdist.input import count_records, write_tfrecords
        >>> prefix = tempfile.mkdtemp() + "/letters"
        >>> files = write_tfrecords([b"a", b"b", b"c"], prefix, num_shards=2)
        >>> count_records(prefix + "-*"), count_records(files[:1])
        (3, 2)
    """
    found = find_files(files)
    counted, _, _ = count_files(found, Source(compression=compression_of(found)), sum_over_workers=None)
    return sum(file.records or 0 for file in counted)
