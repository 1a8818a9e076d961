"""Turns files into the dataset that fit takes: finds and counts them, plans, and builds a pipeline for each worker."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.input.checks import (
    check_batch_size,
    check_number_of_records,
    check_order,
    check_reading,
    check_state,
    check_step,
)
from tfdist.input.distributed_files import DistributedFiles, with_attributes
from tfdist.input.find import Files, compression_of, count_files, find_files, indexes_of
from tfdist.input.index import RecordIndex
from tfdist.input.iterations import Iterations, let_iterations_differ
from tfdist.input.layout import Layout
from tfdist.input.local import Counted, check_local, on_every_worker, plan_of, together
from tfdist.input.parse import Parser
from tfdist.input.pipeline import Pipeline
from tfdist.input.plan import File
from tfdist.input.read import Reader, Source
from tfdist.input.state import InputState
from tfdist.workers import count_workers, saying_what_it_waits_for, sum_over_workers, worker_index

_SHUFFLE_BUFFER = 10_000


def distribute_files(
    strategy: tf.distribute.Strategy,
    files: Files,
    *,
    parse_fn: Callable[..., Any],
    global_batch_size: int,
    training: bool = True,
    policy: str = "auto",
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    state: InputState | None = None,
    drop_remainder: bool = False,
    reader: Reader | None = None,
    compression: str | None = None,
    skip_corrupt: bool = False,
    cache: bool = False,
    num_threads: int | None = None,
) -> DistributedFiles:
    """Returns the records of files as the dataset that `fit`, `evaluate`, `predict` and a custom loop take.

    The files are divided into canonical shards. Each input pipeline (one for each worker) reads its own shards, and
    every step takes the same number of records from each shard, so that the k-th global batch holds the same records on
    1, 2, 4 or 8 pipelines. Each epoch reads each record once. If shards have different lengths, the last batches of an
    epoch are smaller, and a replica may receive an empty batch.

    With training=True the dataset repeats without end, in another order each epoch; an epoch of `fit` has
    `steps_per_epoch` steps. A further fit or iterator begins at the next epoch. With training=False the dataset ends
    after one epoch, and keeps the order of the files within each shard. Under a parameter server strategy, the workers
    make steps independently of each other.

    Args:
        strategy: strategy from create_strategy.
        files: a pattern, names, or File values; local, gs://, hdfs://, or another file system that tf.io.gfile reads.
            Records are counted from the index that write_tfrecords writes; without an index, the workers count them.
        parse_fn: maps one record to one example, such as (image, label). A record is a serialized example, a scalar
            string tensor, or an element of the reader's dataset.
        global_batch_size: records in a step over all replicas; under a parameter server strategy, records in a step of
            one worker.
        training: whether to shuffle and repeat.
        policy: how files are divided: `auto`, `files`, `records` or `replicate`, see plan_shards. With `replicate`,
            which is for training only, every pipeline reads all files in an order of its own. With `local`, every
            worker reads all files that it finds on its own host, which the other workers need not have.
        shuffle_buffer: for training, number of records that all pipelines together shuffle; 0 does not shuffle, None
            means 10,000.
        seed: for training, seed of the order of files and records; None means 0.
        state: position at which to begin, instead of a seed. From this position on, the batches are the same as in an
            uninterrupted run.
        drop_remainder: whether to leave out batches that are not full, so that all shapes are static. The records that
            are left out change from epoch to epoch.
        reader: for files other than TFRecord files, maps the name of a file, a scalar string tensor, to a
            tf.data.Dataset of its records. All records have the same shape.
        compression: compression of TFRecord files, "GZIP" or ""; None looks at the first file.
        skip_corrupt: whether to report and skip the rest of a segment after a record that cannot be read. Otherwise
            such a record raises an error that names the file and the record.
        cache: whether to keep the records in memory, as they are before parse_fn. Each pipeline reads its shards before
            its first step, and no file after that. The order of records is the same.
        num_threads: number of threads of a pool for this dataset alone; None shares TensorFlow's threads.

    Returns:
        The dataset, with the attributes `steps_per_epoch`, `repeats`, `plan` and `state`.

    Raises:
        ValueError: if there are no files, if a file is listed twice, truncated or corrupt, if the number of replicas
            does not divide the batch, if training has fewer records than a global batch, if parse_fn fails on the first
            record, or if options contradict each other.

    Example:
        >>> import tempfile, tensorflow as tf, tfdist
        >>> from tfdist.input import distribute_files, write_tfrecords
        >>> files = write_tfrecords([b"1", b"2", b"3"], tempfile.mkdtemp() + "/numbers", num_shards=1)
        >>> strategy = tfdist.create_strategy("one_device")
        >>> dataset = distribute_files(
        ...     strategy, files, parse_fn=tf.strings.to_number, global_batch_size=1, training=False
        ... )
        >>> dataset.steps_per_epoch, [batch.numpy().tolist() for batch in dataset]
        (3, [[1.0], [2.0], [3.0]])
    """
    check_order(training=training, policy=policy, seed=seed, shuffle_buffer=shuffle_buffer, state=state)
    check_reading(
        has_reader=reader is not None,
        compression=compression,
        skip_corrupt=skip_corrupt,
        drop_remainder=drop_remainder,
        cache=cache,
        num_threads=num_threads,
    )
    check_batch_size(global_batch_size, num_replicas=strategy.num_replicas_in_sync)
    in_sync = not isinstance(strategy, tf.distribute.ParameterServerStrategy)
    state = InputState(seed=seed or 0) if state is None else state
    check_state(state, policy=policy, in_sync=in_sync)
    num_pipelines = _count_pipelines(strategy)
    if policy == "local":
        check_local(strategy, state, num_pipelines=num_pipelines)
    count = functools.partial(
        _count, files=files, parse_fn=parse_fn, compression=compression, reader=reader, skip_corrupt=skip_corrupt
    )
    counted = on_every_worker(strategy, lambda: count(None)) if policy == "local" else count(strategy)
    records, num_files = counted.records, counted.num_files
    check_number_of_records(records, files=num_files, training=training, global_batch_size=global_batch_size)
    parse, source = counted.parser(), counted.source
    buffer = (_SHUFFLE_BUFFER if shuffle_buffer is None else shuffle_buffer) if training else 0

    @functools.cache
    def layout_for(num_pipelines: int) -> Layout:
        return Layout.of(
            counted.files,
            counted.indexes,
            divided=plan_of(counted) if policy == "local" else None,
            policy=policy,
            global_batch_size=global_batch_size,
            num_pipelines=num_pipelines,
            canonical_shards=state.canonical_shards,
            drop_remainder=drop_remainder,
            in_sync=in_sync,
            records_may_be_lost=skip_corrupt,
        )

    memory: dict[int, tf.data.Dataset] = {}

    def dataset_of(context: tf.distribute.InputContext, state: InputState) -> tf.data.Dataset:
        pipeline = Pipeline(
            layout_for(context.num_input_pipelines),
            source,
            state=state,
            num_pipelines=context.num_input_pipelines,
            number=context.input_pipeline_id,
            replicas=max(1, context.num_replicas_in_sync // context.num_input_pipelines) if in_sync else 1,
            memory=memory,
        )
        dataset = pipeline.dataset(parse, training=training, shuffle_buffer=buffer, cache=cache)
        if num_threads is not None:
            options = tf.data.Options()
            options.threading.private_threadpool_size = num_threads
            dataset = dataset.with_options(options)
        return dataset

    layout = layout_for(num_pipelines)
    check_step(state, steps_per_epoch=layout.steps)
    get_logger().log(
        logging.INFO if training else logging.DEBUG,
        "%d files with %d records (%s), %d steps%s of %d records: policy %s, %d canonical shards, imbalance %.3f in "
        "records; each replica receives %d records in a step",
        num_files,
        records,
        counted.how,
        layout.steps,
        " in an epoch" if training else "",
        global_batch_size,
        layout.plan.policy,
        len(layout.plan.shards),
        layout.plan.imbalance,
        global_batch_size // strategy.num_replicas_in_sync,
    )
    if layout.plan.policy == "records" and num_files < num_pipelines:
        get_logger().warning(
            "expected at least %d files, one for each input pipeline, received %d, which are split between records; "
            "write more files",
            num_pipelines,
            num_files,
        )

    def dataset_at(position: Callable[[], InputState]) -> DistributedFiles:
        return with_attributes(
            strategy.distribute_datasets_from_function(lambda context: dataset_of(context, position())),
            steps_per_epoch=layout.steps,
            repeats=training,
            plan=layout.plan,
            state=position(),
            at=at,
        )

    def beginning_at(state: InputState) -> DistributedFiles:
        def fixed() -> InputState:
            return state

        return dataset_at(fixed)

    def at(state: InputState) -> DistributedFiles:
        if policy == "local":
            check_local(strategy, state, num_pipelines=num_pipelines)
        state = dataclasses.replace(state, canonical_shards=len(layout.plan.shards))
        if not training:
            return beginning_at(state)
        iterations = Iterations(state, steps_per_epoch=layout.steps, build=beginning_at)

        def current() -> InputState:
            return iterations.current

        # Workers of parameter servers build their datasets in each fit.
        return let_iterations_differ(beginning_at(state) if in_sync else dataset_at(current), iterations)

    return at(state)


def _count(
    strategy: tf.distribute.Strategy | None,
    *,
    files: Files,
    parse_fn: Callable[..., Any],
    compression: str | None,
    reader: Reader | None,
    skip_corrupt: bool,
) -> Counted:
    """Returns the files with their numbers of records; the workers of the strategy divide the counting among them.

    Without a strategy, this worker counts all of its files.
    """

    def find() -> tuple[list[File], Source, dict[str, RecordIndex]]:
        found = find_files(files)
        kind = compression
        if kind is None:
            kind = compression_of(found) if reader is None else ""
        source = Source(compression=kind, reader=reader, skip_corrupt=skip_corrupt)
        return found, source, indexes_of(found, source)

    # If a worker fails alone, the others would wait for it in the next exchange.
    found, source, indexes = together(strategy, find, to="find its files in distribute_files")
    num_workers = count_workers(strategy)

    def add(counts: np.ndarray) -> np.ndarray:
        assert strategy is not None
        with saying_what_it_waits_for("count the records of its files in distribute_files"):
            return sum_over_workers(strategy, counts)

    known, indexes, how = count_files(
        found,
        source,
        sum_over_workers=add if num_workers > 1 else None,
        worker=worker_index(strategy) if strategy is not None else 0,
        num_workers=num_workers,
        indexes=indexes,
    )
    full = [file.name for file in known if file.records]
    parse = together(
        strategy,
        lambda: Parser(parse_fn, full, source) if full else None,
        to="parse its first record in distribute_files",
    )
    return Counted(files=known, indexes=indexes, how=how, source=source, parse=parse)


def _count_pipelines(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of input pipelines: one for each host of a TPU, one for each worker of other strategies."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return int(strategy.extended.num_hosts)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        resolver = getattr(strategy, "cluster_resolver", None)
        jobs = resolver.cluster_spec().as_dict() if resolver is not None else {}
        return max(1, len(jobs.get("worker", ())))
    return count_workers(strategy)
