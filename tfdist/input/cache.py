"""A pipeline's records kept in memory, and picked from there in the order in which files would be read."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from tfdist.input.plan import Segment, ShardPlan
from tfdist.input.read import Order, ShardTable, Source, read_shard

_WINDOW = 1024


def positions(plan: ShardPlan) -> ShardPlan:
    """Returns the plan of shards of numbers: where each record is in memory when its shard has been read in order.

    Their order depends on the lengths of segments alone, so that it is the order of the records.
    """
    shards = []
    for shard in plan.shards:
        first, numbers = 0, []
        for segment in shard:
            numbers.append(Segment(file=str(first), stop=segment.records, size=segment.size))
            first += segment.records or 0
        shards.append(tuple(numbers))
    return dataclasses.replace(plan, shards=tuple(shards))


# Reads a plan of positions.
POSITIONS = Source(reader=lambda name: tf.data.Dataset.range(tf.strings.to_number(name, tf.int64), tf.int64.max))


def picked(at: tf.data.Dataset, table: ShardTable, *, first: tf.Tensor, shards: int, source: Source) -> tf.data.Dataset:
    """Returns the records at the given positions.

    Args:
        at: vectors of positions, from each shard in turn.
        table: of the records, not of their positions.
        first: int64 scalar, the first shard of this pipeline.
        shards: how many it has.
        source: of the records.
    """

    def whole(shard: tf.Tensor) -> tf.data.Dataset:
        zero = tf.constant(0, tf.int64)
        order = Order(seed=None, group=1, window=_WINDOW)
        records = read_shard(table, shard, zero, zero, order=order, source=source)
        # A shard of no records has a vector too.
        empty = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), records.element_spec)
        vector = records.rebatch(tf.maximum(tf.gather(table.records, shard), 1))
        return vector.concatenate(tf.data.Dataset.from_tensors(empty)).take(1)

    kept = tf.data.Dataset.range(first, first + shards).interleave(
        whole, cycle_length=shards, num_parallel_calls=shards, deterministic=True
    )

    def pick(numbers: tf.Tensor, records: Any) -> Any:
        return tf.nest.map_structure(lambda values: tf.gather(values, numbers), records)

    # What is read ahead completes the cache also for one step.
    kept = kept.cache().prefetch(shards + 1).repeat()
    return tf.data.Dataset.zip((at, kept)).map(pick)
