"""Reads the records of one canonical shard, in an order that depends only on the seed, the epoch and the shard.

The segments of the shard are shuffled and divided into groups. A window of records is read from every segment of a
group; the records of these windows form a block, and are shuffled together. Any block can be computed without reading
the blocks before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.input.index import GRANULE, RecordIndex
from tfdist.input.packed import packed
from tfdist.input.plan import ShardPlan

Reader = Callable[[tf.Tensor], tf.data.Dataset]
_BUFFER_BYTES = 1 << 18
_SMALL_BUFFER_BYTES = 1 << 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
    """How the records of a shard are shuffled.

    Attributes:
        seed: seed of the order; None reads the records in the order of the files.
        group: number of segments that are read at the same time.
        window: number of records that a block takes from each of these segments.
    """

    seed: int | None
    group: int
    window: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """How the records of a file are read.

    Attributes:
        compression: compression of TFRecord files, "" or "GZIP".
        reader: maps the name of a file, a scalar string tensor, to a dataset of its records; None reads TFRecord files.
        skip_corrupt: whether records that cannot be read are reported and skipped, instead of raising an error.
    """

    compression: str = ""
    reader: Reader | None = None
    skip_corrupt: bool = False

    def first(self, name: tf.Tensor) -> tf.data.Dataset:
        """Returns a dataset of the first record of a file, which reads only a few kilobytes of a TFRecord file."""
        if self.reader is not None:
            return packed(self.reader(name)).take(1)
        small = tf.data.TFRecordDataset(name, compression_type=self.compression, buffer_size=_SMALL_BUFFER_BYTES)
        return small.take(1)

    def whole(self, name: tf.Tensor) -> tf.data.Dataset:
        """Returns a dataset of all records of a file."""
        if self.reader is not None:
            return packed(self.reader(name))
        return tf.data.TFRecordDataset(name, compression_type=self.compression)


class ShardTable:
    """The segments of all shards as arrays, which functions of a dataset can index, also on another host.

    Args:
        plan: plan whose segments have known numbers of records.
        indexes: indexes of the files that have one, by name.
    """

    def __init__(self, plan: ShardPlan, indexes: dict[str, RecordIndex]) -> None:
        self.names = sorted({segment.file for shard in plan.shards for segment in shard})
        number = {name: i for i, name in enumerate(self.names)}
        width = max(1, *(len(shard) for shard in plan.shards))
        # Each array has the shape [shards, width], and is padded with segments of no records.
        self.file, self.start, self.length = (np.zeros([len(plan.shards), width], np.int64) for _ in range(3))
        for i, shard in enumerate(plan.shards):
            for j, segment in enumerate(shard):
                self.file[i, j], self.start[i, j] = number[segment.file], segment.start
                self.length[i, j] = segment.records or 0
        # A shard without segments counts as a shard with one segment of no records.
        self.segments = np.array([max(1, len(shard)) for shard in plan.shards], np.int64)
        self.records = self.length.sum(axis=1)
        offsets = [indexes[name].offsets if name in indexes else () for name in self.names]
        self.seekable = all(offsets) and bool(self.names)
        self.offsets = np.concatenate([np.asarray(part, np.int64) for part in offsets]) if self.names else np.zeros(0)
        self.first_offset = np.cumsum([0, *(len(part) for part in offsets)])[:-1].astype(np.int64)


def read_shard(
    table: ShardTable, shard: tf.Tensor, epoch: tf.Tensor, first: tf.Tensor, *, order: Order, source: Source
) -> tf.data.Dataset:
    """Returns the records of a shard from record `first` of the epoch on, in batches of various sizes.

    Args:
        table: segments of all shards.
        shard: int64 scalar, number of the shard.
        epoch: int64 scalar, number of the epoch.
        first: int64 scalar, number of records of the epoch to skip.
        order: how the records are shuffled.
        source: how the files are read.
    """
    segments = tf.gather(table.segments, shard)
    chosen = tf.range(segments)
    if order.seed is not None:
        chosen = tf.random.experimental.stateless_shuffle(chosen, _seed(order, epoch, shard))
    padding = -segments % order.group
    # Each tensor has the shape [groups, order.group].
    file, start, length = (
        tf.reshape(tf.pad(tf.gather(values[shard], chosen), [[0, padding]]), [-1, order.group])
        for values in map(tf.convert_to_tensor, (table.file, table.start, table.length))
    )
    # Record `first` is in group `group0`, in block `block0` of this group, after the first `skipped` records of this
    # block.
    ends = tf.cumsum(tf.reduce_sum(length, 1))
    groups = tf.shape(length, tf.int64)[0]
    group0 = tf.reduce_sum(tf.cast(ends <= first, tf.int64))
    found = tf.minimum(group0, groups - 1)
    in_group = first - (ends[found] - tf.reduce_sum(length[found]))
    windows = tf.reduce_max((length + order.window - 1) // order.window, 1)
    sizes = _window_sizes(length[found], tf.range(windows[found])[:, None], order)
    block_ends = tf.cumsum(tf.reduce_sum(sizes, 1))
    block0 = tf.reduce_sum(tf.cast(block_ends <= in_group, tf.int64))
    skipped = in_group - tf.reduce_sum(sizes[:block0])

    def read_group(group: tf.Tensor) -> tf.data.Dataset:
        is_first = tf.equal(group, group0)
        begin = tf.where(is_first, block0, 0)
        streams = tuple(
            _windows(table, file[group, i], start[group, i], length[group, i], begin, order=order, source=source)
            for i in range(order.group)
        )

        def block(number: tf.Tensor, *parts: Any) -> Any:
            checks = [
                _check(
                    table,
                    file[group, i],
                    start[group, i] + number * order.window,
                    part,
                    expected=expected,
                    source=source,
                )
                for i, (part, expected) in enumerate(
                    zip(parts, tf.unstack(_window_sizes(length[group], number, order)), strict=True)
                )
            ]
            with tf.control_dependencies(checks):
                rows = tf.nest.map_structure(lambda *values: tf.concat(values, 0), *parts)
            if order.seed is not None:
                shuffled = tf.range(tf.shape(tf.nest.flatten(rows)[0])[0])
                shuffled = tf.random.experimental.stateless_shuffle(shuffled, _seed(order, epoch, shard, group, number))
                rows = tf.nest.map_structure(lambda values: tf.gather(values, shuffled), rows)
            skip = tf.where(is_first & tf.equal(number, block0), skipped, 0)
            return tf.nest.map_structure(lambda values: values[skip:], rows)

        blocks = tf.data.Dataset.zip((tf.data.Dataset.range(begin, windows[group]), *streams))
        return blocks.map(block)

    # The next block is read while the current block is used, also if the next block belongs to the next group.
    return tf.data.Dataset.range(group0, groups).flat_map(read_group).prefetch(1)


def _seed(order: Order, epoch: tf.Tensor, *data: tf.Tensor) -> tf.Tensor:
    seed = tf.stack([tf.constant(order.seed, tf.int64), epoch])
    for value in data:
        seed = tf.random.experimental.stateless_fold_in(seed, value)
    return seed


def _window_sizes(length: tf.Tensor, number: tf.Tensor, order: Order) -> tf.Tensor:
    return tf.clip_by_value(length - number * order.window, 0, order.window)


def _windows(
    table: ShardTable,
    file: tf.Tensor,
    start: tf.Tensor,
    length: tf.Tensor,
    begin: tf.Tensor,
    *,
    order: Order,
    source: Source,
) -> tf.data.Dataset:
    """Returns the windows of a segment from window `begin` on, followed by empty windows without end."""
    skipped = begin * order.window
    first = start + skipped
    if table.seekable and source.reader is None and not source.compression:
        entry = tf.gather(table.first_offset, file) + first // GRANULE
        # If a segment is shorter than others of its group, `begin` may lie beyond its end, and beyond the index.
        offset = tf.gather(table.offsets, tf.minimum(entry, tf.size(table.offsets, tf.int64) - 1))
        records = _from_offset(tf.gather(table.names, file), offset).skip(first % GRANULE)
    else:
        records = source.whole(tf.gather(table.names, file)).skip(first)
    records = records.take(tf.maximum(length - skipped, 0))
    if source.reader is None:
        # A record that cannot be read ends the file, and _check finds a window that is too short. The errors of a
        # reader's dataset are not ignored, since such a dataset may continue after an error.
        records = records.ignore_errors(log_warning=True)
    windows = records.batch(order.window)
    empty = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), windows.element_spec)
    return windows.concatenate(tf.data.Dataset.from_tensors(empty).repeat()).prefetch(1)


def _from_offset(name: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    """Returns the records of a TFRecord file from a byte on; tf.data.TFRecordDataset has no argument for the byte."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[name], compression_type="", buffer_size=_BUFFER_BYTES, byte_offsets=[offset]
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _check(
    table: ShardTable, file: tf.Tensor, first: tf.Tensor, part: Any, *, expected: tf.Tensor, source: Source
) -> tf.Operation:
    """Raises an error if a window has fewer records than expected; with skip_corrupt, prints a line instead."""
    received = tf.shape(tf.nest.flatten(part)[0], tf.int64)[0]
    name, record = tf.gather(table.names, file), tf.strings.as_string(first + received)
    if source.skip_corrupt:
        text = ["tfdist.input: skipped ", tf.strings.as_string(expected - received), " records of '", name]
        text += ["' from record ", record, " on, which cannot be read"]
        return tf.cond(received < expected, lambda: tf.print(tf.strings.join(text)), tf.no_op)
    if source.reader is None:
        text = ["expected readable records, received a truncated or corrupt record: record ", record, " of ", name]
        text += ["; write the file again, or pass skip_corrupt=True to skip the rest of the file."]
    else:
        text = ["expected the reader to return the records that it returned when they were counted, received none for "]
        text += ["record ", record, " of ", name, "; let the reader return the same records each time."]
    return tf.debugging.Assert(tf.equal(received, expected), [tf.strings.join(text)])
