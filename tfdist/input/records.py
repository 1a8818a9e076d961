"""TFRecord files: writing shards with an index beside them, and counting what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import tensorflow as tf

from tfdist.input.find import compression_of, count_files, find_files
from tfdist.input.index import IndexBuilder, RecordIndex, write_index
from tfdist.input.read import Source


def write_tfrecords(
    examples: Iterable[bytes], prefix: str, *, num_shards: int, compression: str | None = None
) -> list[str]:
    """Writes serialized examples to `prefix-00000-of-0000N.tfrecord` and so on, dealt out in turn.

    Beside them is `prefix.index.json`: how many records each file holds, and where every 64th begins, so that
    distribute_files need not count, and can begin in the middle.

    Args:
        examples: serialized records, such as tf.train.Example protos.
        prefix: path that the files' names begin with; its folder is made if missing.
        num_shards: how many files to write.
        compression: "GZIP", or nothing; a compressed file cannot be entered in the middle.

    Returns:
        The files' names, in order.

    Raises:
        ValueError: if num_shards is not positive, or the compression unknown.

    Example:
        >>> import tempfile
        >>> from tfdist.input import count_records, write_tfrecords
        >>> files = write_tfrecords([b"a", b"b", b"c"], tempfile.mkdtemp() + "/letters", num_shards=2)
        >>> count_records(files)
        3
    """
    if num_shards < 1:
        raise ValueError(f"expected num_shards to be at least 1, received {num_shards}; write one file or more.")
    if compression not in (None, "", "GZIP"):
        raise ValueError(f"expected compression to be 'GZIP' or nothing, received {compression!r}; leave it out.")
    tf.io.gfile.makedirs(os.path.dirname(prefix) or ".")
    names = [f"{prefix}-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]
    builders = [IndexBuilder() for _ in names]
    writers = [tf.io.TFRecordWriter(name, compression) for name in names]
    try:
        for i, example in enumerate(examples):
            writers[i % num_shards].write(example)
            builders[i % num_shards].add(len(example))
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


def count_records(files: str | Sequence[str]) -> int:
    """Returns how many records TFRecord files hold, by the index beside them or by counting.

    Args:
        files: a pattern, or names.

    Raises:
        ValueError: names the file and the record that is truncated.
    """
    found = find_files(files)
    counted, _, _ = count_files(found, Source(compression=compression_of(found)), agree=None)
    return sum(file.records or 0 for file in counted)
