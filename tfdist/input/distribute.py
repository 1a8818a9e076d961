"""From files to the dataset that `fit` takes, sharded by file through distribute_datasets_from_function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger


def distribute_files(
    strategy: tf.distribute.Strategy,
    files: str | Sequence[str],
    *,
    parse_fn: Callable[[tf.Tensor], Any],
    global_batch_size: int,
    training: bool = True,
    shuffle_buffer: int = 10_000,
    seed: int = 0,
) -> Any:
    """Returns the records of TFRecord files as what `fit`, `evaluate` and a custom loop take on this strategy.

    For training the dataset repeats without end and leaves no partial batch, so that every worker makes the same number
    of steps: give `steps_per_epoch`. Each file is read by one pipeline where there are at least as many files as
    pipelines; else every pipeline reads all files and keeps its share of the records. For evaluation each record comes
    exactly once, in order, and the last global batch may be smaller, or empty on some replicas.

    Args:
        strategy: from create_strategy.
        files: a pattern or a list of names.
        parse_fn: maps a serialized record, a scalar string tensor, to one example such as (image, label).
        global_batch_size: records a step over all replicas; on a parameter server, records a step of one worker.
        training: whether to shuffle and repeat.
        shuffle_buffer: how many records each pipeline shuffles among.
        seed: decides the order of files and records.

    Raises:
        ValueError: if no file is found, or the replicas do not divide the batch.

    Example:
        >>> import tempfile, tensorflow as tf, tfdist
        >>> from tfdist.input import distribute_files, write_tfrecords
        >>> files = write_tfrecords([b"1", b"2", b"3"], tempfile.mkdtemp() + "/numbers", num_shards=1)
        >>> strategy = tfdist.create_strategy("one_device")
        >>> dataset = distribute_files(
        ...     strategy, files, parse_fn=tf.strings.to_number, global_batch_size=2, training=False
        ... )
        >>> [batch.numpy().tolist() for batch in dataset]
        [[1.0, 2.0], [3.0]]
    """
    names = _find(files)
    replicas = strategy.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
        raise ValueError(
            f"expected global_batch_size to be a multiple of the {replicas} replicas, received {global_batch_size}; "
            f"take {max(1, round(global_batch_size / replicas)) * replicas}."
        )
    # On a parameter server each worker makes steps of its own: its pipeline is not in step with the others.
    in_sync = not isinstance(strategy, tf.distribute.ParameterServerStrategy)

    def training_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines, own = context.num_input_pipelines, context.input_pipeline_id
        by_file = len(names) >= pipelines
        records = _read(names, seed=seed, shard=(pipelines, own) if by_file else None)
        if not by_file:
            records = records.shard(pipelines, own)
        records = records.shuffle(shuffle_buffer, seed=seed).repeat()
        batch = context.get_per_replica_batch_size(global_batch_size)
        return _parse(records, parse_fn).batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def evaluation_data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipelines, own = context.num_input_pipelines, context.input_pipeline_id
        batches = _parse(tf.data.TFRecordDataset(names), parse_fn).batch(global_batch_size)
        if not in_sync:
            return batches.shard(pipelines, own).prefetch(tf.data.AUTOTUNE)
        if context.num_replicas_in_sync == 1:
            return batches.prefetch(tf.data.AUTOTUNE)
        local = context.num_replicas_in_sync // pipelines
        rows = global_batch_size // context.num_replicas_in_sync
        first = own * local

        def split(*batch: Any) -> tf.data.Dataset:
            def part(replica: tf.Tensor) -> Any:
                start = (first + tf.cast(replica, tf.int32)) * rows
                parts = tf.nest.map_structure(lambda tensor: tensor[start : start + rows], batch)
                return parts[0] if len(parts) == 1 else parts

            return tf.data.Dataset.range(local).map(part)

        return batches.flat_map(split).prefetch(tf.data.AUTOTUNE)

    if training:
        get_logger().debug(
            "%d files for training, %d records a replica and step", len(names), global_batch_size // replicas
        )
    return strategy.distribute_datasets_from_function(training_data if training else evaluation_data)


def _find(files: str | Sequence[str]) -> list[str]:
    names = sorted(tf.io.gfile.glob(files)) if isinstance(files, str) else list(files)
    if not names:
        raise ValueError(f"expected files for {files!r}, found none; check the pattern.")
    return names


def _read(names: list[str], *, seed: int, shard: tuple[Any, Any] | None) -> tf.data.Dataset:
    files = tf.data.Dataset.from_tensor_slices(names)
    if shard is not None:
        files = files.shard(*shard)
    files = files.shuffle(len(names), seed=seed)
    return files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=min(8, len(names)),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def _parse(records: tf.data.Dataset, parse_fn: Callable) -> tf.data.Dataset:
    return records.map(parse_fn, num_parallel_calls=tf.data.AUTOTUNE)
