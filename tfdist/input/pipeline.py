"""The dataset of one input pipeline: its shards' records, parsed and divided into one batch for each local replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.input.cache import POSITIONS, pick_from_memory, positions_in_memory, records_in_memory
from tfdist.input.layout import Layout
from tfdist.input.parse import CHUNK, Parser
from tfdist.input.read import Order, ShardTable, Source, read_shard
from tfdist.input.state import InputState

# Number of files that a shard reads at the same time.
OPEN_FILES = 4
_ENDLESS = np.iinfo(np.int64).max


class Pipeline:
    """The batches of one input pipeline.

    Args:
        layout: how records are divided among shards, pipelines and steps.
        source: how the files are read.
        state: position at which reading begins.
        num_pipelines: number of input pipelines.
        number: number of this pipeline, an integer or a scalar tensor.
        replicas: number of replicas that this pipeline feeds, which is the number of its batches in a step.
        memory: the datasets that are kept in memory, by number of the pipeline, for all positions together.
    """

    def __init__(
        self,
        layout: Layout,
        source: Source,
        *,
        state: InputState,
        num_pipelines: int,
        number: int | tf.Tensor,
        replicas: int,
        memory: dict[int, tf.data.Dataset],
    ) -> None:
        self._layout, self._source, self._state = layout, source, state
        self._shards = len(layout.plan.shards) // num_pipelines
        # Workers of parameter servers build their pipelines in a function, which owns its datasets.
        self._memory = memory if isinstance(number, int) and tf.executing_eagerly() else {}
        self._key = number if isinstance(number, int) else 0
        self._number = tf.cast(number, tf.int64)
        self._replicas = replicas
        self._batch_size = layout.rows_per_shard * self._shards // replicas

    def dataset(self, parse: Parser, *, training: bool, shuffle_buffer: int, cache: bool) -> tf.data.Dataset:
        """Returns the batches of the replicas in turn, step by step.

        Args:
            parse: maps records to examples.
            training: whether to repeat without end.
            shuffle_buffer: number of records that all pipelines together shuffle; 0 keeps the order of the files.
            cache: whether to keep the records in memory.
        """
        shards = self._layout.plan.shards
        group = min(OPEN_FILES, max(len(shard) for shard in shards))
        window = max(1, shuffle_buffer // len(shards) // group)
        order = Order(seed=self._state.seed, group=group, window=window)
        if not shuffle_buffer:
            order = Order(seed=None, group=1, window=max(64, self._layout.rows_per_shard))
        first = self._number * self._shards
        table, source = self._layout.table, self._source
        if cache:
            table, source = ShardTable(positions_in_memory(self._layout.plan), {}), POSITIONS
        # The rows of each step, from each shard of this pipeline in turn.
        rows = tf.data.Dataset.range(first, first + self._shards).interleave(
            lambda shard: self._rows_of(shard, table, order, source, training=training),
            cycle_length=self._shards,
            num_parallel_calls=self._shards,
            deterministic=True,
        )
        if cache:
            if self._key not in self._memory:
                self._memory[self._key] = records_in_memory(
                    self._layout.table, first=first, shards=self._shards, source=self._source
                )
            rows = pick_from_memory(rows, self._memory[self._key], shards=self._shards)
        chunk = min(CHUNK, self._batch_size)
        if self._layout.all_steps_full:
            parsed = rows.rebatch(chunk).map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            return parsed.rebatch(self._batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        padded = tf.data.Dataset.zip((rows.ragged_batch(self._shards), self._padding(parse.file))).map(self._pad)
        parsed = padded.rebatch(chunk).map(
            lambda records, is_row: (parse(records), is_row),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        batches = parsed.rebatch(self._batch_size, drop_remainder=True)
        return batches.map(_without_padding).prefetch(tf.data.AUTOTUNE)

    def _rows_of(
        self, shard: tf.Tensor, table: ShardTable, order: Order, source: Source, *, training: bool
    ) -> tf.data.Dataset:
        """Returns the rows that each step takes from a shard; the last steps of an epoch may take fewer, or none."""
        layout, state = self._layout, self._state

        def epoch_of(epoch: tf.Tensor) -> tf.data.Dataset:
            begin = tf.where(tf.equal(epoch, state.epoch), tf.constant(state.step, tf.int64), 0)
            records = read_shard(table, shard, epoch, begin * layout.rows_per_shard, order=order, source=source)
            rows = records.rebatch(layout.rows_per_shard)
            empty = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape[1:]], spec.dtype), rows.element_spec)
            rows = rows.concatenate(tf.data.Dataset.from_tensors(empty).repeat())
            steps = tf.gather(tf.constant(layout.steps_of_pipelines, tf.int64), self._number)
            return rows.take(tf.maximum(steps - begin, 0))

        end = _ENDLESS if training else state.epoch + 1
        return tf.data.Dataset.range(state.epoch, end).flat_map(epoch_of).prefetch(2)

    def _padding(self, file: str) -> tf.data.Dataset:
        """Returns one record, repeated without end. It pads batches that are not full, and is removed after parsing."""
        record = tf.data.Dataset.from_tensors(tf.constant(file)).flat_map(self._source.first)
        # cache() keeps a dataset only after it has been read to its end, which prefetch(2) does in the first step.
        return record.cache().prefetch(2).repeat()

    def _pad(self, rows: Any, padding: Any) -> tuple[Any, tf.Tensor]:
        """Divides the rows of a step evenly among the replicas, and pads their batches.

        Returns:
            The rows of all replicas, each with `_batch_size` rows, and a boolean vector that is False for padding.
        """
        rows = tf.nest.map_structure(lambda ragged: ragged.values, rows)
        count = tf.shape(tf.nest.flatten(rows)[0])[0]
        bounds = tf.range(self._replicas + 1) * count // self._replicas
        place = tf.range(self._batch_size)[None, :]
        # [replicas, batch size]: number of the row at each place; `count` is the number of the padding.
        chosen = tf.where(place < (bounds[1:] - bounds[:-1])[:, None], bounds[:-1, None] + place, count)
        chosen = tf.reshape(chosen, [-1])
        filled = tf.nest.map_structure(
            lambda values, one: tf.gather(tf.concat([values, one[None]], 0), chosen), rows, padding
        )
        return filled, chosen < count


def _without_padding(batch: Any, is_row: tf.Tensor) -> Any:
    """Returns the rows of a batch that come before its padding."""
    count = tf.reduce_sum(tf.cast(is_row, tf.int32))

    def cut(values: Any) -> Any:
        if isinstance(values, tf.SparseTensor):
            size = tf.concat([tf.cast(count, tf.int64)[None], values.dense_shape[1:]], 0)
            return tf.sparse.slice(values, tf.zeros_like(values.dense_shape), size)
        return values[:count]

    return tf.nest.map_structure(cut, batch)
