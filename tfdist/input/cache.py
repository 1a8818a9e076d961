"""Keeps the records of a pipeline in memory, and reads them in the order in which they are read from files."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfdist.input.plan import Segment, ShardPlan
from tfdist.input.read import Order, ShardTable, Source, read_shard

_WINDOW = 1024


def positions_in_memory(plan: ShardPlan) -> ShardPlan:
    """Returns a plan of the same shape in which a record is a number: its position in its shard, in file order.

    The order in which a plan is read depends on the lengths of its segments, and not on the content of its records.
    Reading the new plan with POSITIONS therefore gives the positions of the records, in the order in which reading the
    original plan gives the records.
    """
    shards = []
    for shard in plan.shards:
        first, segments = 0, []
        for segment in shard:
            segments.append(Segment(file=str(first), stop=segment.records, size=segment.size))
            first += segment.records or 0
        shards.append(tuple(segments))
    return dataclasses.replace(plan, shards=tuple(shards))


# Reads the plan that positions_in_memory returns: the name of a "file" is the position of its first record.
POSITIONS = Source(reader=lambda name: tf.data.Dataset.range(tf.strings.to_number(name, tf.int64), tf.int64.max))


def records_in_memory(table: ShardTable, *, first: tf.Tensor, shards: int, source: Source) -> tf.data.Dataset:
    """Returns a dataset of vectors, which are the records of each shard of a pipeline in turn, kept in memory.

    Args:
        table: segments of the records, in files.
        first: int64 scalar, number of the first shard of this pipeline.
        shards: number of shards of this pipeline.
        source: how the files are read.
    """

    def all_records(shard: tf.Tensor) -> tf.data.Dataset:
        zero = tf.constant(0, tf.int64)
        order = Order(seed=None, group=1, window=_WINDOW)
        records = read_shard(table, shard, zero, zero, order=order, source=source)
        # A shard without records gives an empty vector, so that there is one vector for each shard.
        empty = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), records.element_spec)
        vector = records.rebatch(tf.maximum(tf.gather(table.records, shard), 1))
        return vector.concatenate(tf.data.Dataset.from_tensors(empty)).take(1)

    in_memory = tf.data.Dataset.range(first, first + shards).interleave(
        all_records, cycle_length=shards, num_parallel_calls=shards, deterministic=True
    )
    return in_memory.cache()


def pick_from_memory(positions: tf.data.Dataset, in_memory: tf.data.Dataset, *, shards: int) -> tf.data.Dataset:
    """Returns the records at the given positions, from a copy of the pipeline's records in memory.

    Args:
        positions: vectors of positions, for each shard of the pipeline in turn.
        in_memory: what records_in_memory returned.
        shards: number of shards of this pipeline.
    """

    def pick(positions: tf.Tensor, records: Any) -> Any:
        return tf.nest.map_structure(lambda values: tf.gather(values, positions), records)

    # cache() keeps a dataset only after the dataset has been read to its end. It has one element for each
    # shard, so that prefetching one element more reads to the end, even if only one step is made.
    return tf.data.Dataset.zip((positions, in_memory.prefetch(shards + 1).repeat())).map(pick)
