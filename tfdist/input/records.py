"""TFRecord files: writing shards, and counting what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import tensorflow as tf


def write_tfrecords(examples: Iterable[bytes], prefix: str, *, num_shards: int) -> list[str]:
    """Writes serialized examples to `prefix-00000-of-0000N.tfrecord` and so on, dealt out in turn.

    Args:
        examples: serialized records, such as tf.train.Example protos.
        prefix: path that the files' names begin with; its folder is made if missing.
        num_shards: how many files to write.

    Returns:
        The files' names, in order.

    Raises:
        ValueError: if num_shards is not positive.

    Example:
        >>> import tempfile
        >>> from tfdist.input import count_records, write_tfrecords
        >>> files = write_tfrecords([b"a", b"b", b"c"], tempfile.mkdtemp() + "/letters", num_shards=2)
        >>> count_records(files)
        3
    """
    if num_shards < 1:
        raise ValueError(f"expected num_shards to be at least 1, received {num_shards}; write one file or more.")
    tf.io.gfile.makedirs(os.path.dirname(prefix) or ".")
    names = [f"{prefix}-{i:05d}-of-{num_shards:05d}.tfrecord" for i in range(num_shards)]
    writers = [tf.io.TFRecordWriter(name) for name in names]
    try:
        for i, example in enumerate(examples):
            writers[i % num_shards].write(example)
    finally:
        for writer in writers:
            writer.close()
    return names


def count_records(files: Sequence[str]) -> int:
    """Returns how many records the TFRecord files hold; reads them once.

    Args:
        files: names of TFRecord files.
    """
    dataset = tf.data.TFRecordDataset(list(files), num_parallel_reads=tf.data.AUTOTUNE).batch(1024)
    return int(dataset.reduce(tf.constant(0, tf.int64), lambda n, batch: n + tf.shape(batch, tf.int64)[0]))
