"""From files to the dataset that `fit` takes, sharded by file through distribute_datasets_from_function."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.input.cache import POSITIONS, picked, positions
from tfdist.input.find import compression_of, count_files, find_files
from tfdist.input.index import RecordIndex
from tfdist.input.parse import CHUNK, Parser
from tfdist.input.plan import File, ShardPlan, plan_shards
from tfdist.input.read import Order, Reader, ShardTable, Source, read_shard
from tfdist.input.state import InputState, choose_canonical_shards

# How many files a shard reads at a time.
OPEN_FILES = 4
_FOREVER = np.iinfo(np.int64).max


def distribute_files(
    strategy: tf.distribute.Strategy,
    files: str | Sequence[str | File],
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
) -> Any:
    """Returns the records of files as what `fit`, `evaluate` and a custom loop take on this strategy.

    The files are dealt into canonical shards, each pipeline reads its shards and nothing else, and every step takes as
    many records from each: the k-th global batch holds the same records on 1, 2, 4 or 8 pipelines. Every pipeline makes
    `steps_per_epoch` steps, an attribute of what is returned. In an epoch each record comes exactly once; where shards
    are not of one length the last batches are smaller, and a replica may get none.

    For training the dataset repeats without end, in another order each epoch: give `fit` its `steps_per_epoch`. For
    evaluation it ends, and takes each shard in its order. On a parameter server every worker makes steps of its own;
    `steps_per_epoch` is then how many all of them make.

    Args:
        strategy: from create_strategy.
        files: a pattern, or names or File values; local, gs://, hdfs:// and whatever else tf.io.gfile reads. Records
            are counted by the index beside TFRecord files, as write_tfrecords leaves it, else by the workers.
        parse_fn: maps a serialized record, a scalar string tensor, or what the reader gives to one example such as
            (image, label).
        global_batch_size: records a step over all replicas; on a parameter server, records a step of one worker.
        training: whether to shuffle and repeat.
        policy: who reads what, see plan_shards. `replicate` is for training: every pipeline goes through everything, in
            an order of its own.
        shuffle_buffer: for training, how many records all pipelines together shuffle among; None is 10,000.
        seed: for training, decides the order of files and records; None is 0.
        state: where to begin, instead of seed: exactly what an uninterrupted run would have seen from there.
        drop_remainder: whether to leave out batches that are not full, so that shapes are static. Which records are
            left out changes with the epoch.
        reader: maps the name of a file, a scalar string tensor, to a dataset of its records, for other files than
            TFRecord; tensors of one shape.
        compression: of TFRecord files, nothing or "GZIP"; None looks.
        skip_corrupt: whether to report and leave out the rest of a segment where a record cannot be read, instead of an
            error that names it.
        cache: whether to keep the records in memory, as they are before parse_fn: each pipeline reads its shards before
            its first step, and no file after that. The order is the same.
        num_threads: of a pool of this pipeline's own; None shares TensorFlow's.

    Raises:
        ValueError: names the file, record or number that is wrong: no files, one that comes twice, a truncated one, a
            batch that replicas do not divide, fewer records than a global batch to train on.

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
    if not training and (seed is not None or shuffle_buffer is not None):
        raise ValueError(
            f"expected no seed and no shuffle_buffer for evaluation, which does not shuffle, received {seed} and "
            f"{shuffle_buffer}; leave them out."
        )
    shuffle_buffer = 10_000 if shuffle_buffer is None else shuffle_buffer
    state = _state_of(state, seed)
    _check_numbers(strategy, global_batch_size, shuffle_buffer, policy, training, num_threads)
    found = find_files(files)
    compression = (compression_of(found) if reader is None else "") if compression is None else compression
    if compression not in ("", "GZIP"):
        raise ValueError(f"expected compression to be '', 'GZIP' or None, received {compression!r}; leave it out.")
    if reader is not None and compression:
        raise ValueError("expected compression or a reader, received both; let the reader unpack its files.")
    if cache and skip_corrupt:
        raise ValueError(
            "expected cache or skip_corrupt, received both; write the files again without what is corrupt."
        )
    if skip_corrupt and (drop_remainder or reader is not None):
        other = "drop_remainder, whose batches are full" if drop_remainder else "a reader, which may skip by itself"
        raise ValueError(f"expected skip_corrupt without {other}, received both; leave out one of them.")
    source = Source(compression=compression, reader=reader, skip_corrupt=skip_corrupt)
    num_pipelines, own = _place(strategy)
    in_sync = not isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if state.step and not in_sync:
        raise ValueError(
            f"expected the beginning of an epoch on a parameter server, received step {state.step}; its workers' steps "
            "have no common order, begin with step 0."
        )
    if state.canonical_shards is not None and policy == "replicate":
        raise ValueError(
            f"expected no canonical_shards with policy 'replicate', received {state.canonical_shards}; leave it out."
        )
    # Processes that each have a view of their own; a TPU's or parameter servers' coordinator sees everything.
    together = num_pipelines > 1 and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    known, indexes, how = count_files(
        found,
        source,
        agree=functools.partial(_sum_over_workers, strategy) if together else None,
        worker=own if together else 0,
        num_workers=num_pipelines if together else 1,
    )
    records = sum(file.records or 0 for file in known)
    if records < (global_batch_size if training else 1):
        raise ValueError(
            f"expected at least {'one global batch of ' + str(global_batch_size) if training else 1} records in "
            f"{len(known)} files, received {records}; add files, or lower global_batch_size."
        )
    parse = Parser(parse_fn, [file.name for file in known if file.records], source)

    @functools.cache
    def layout(pipelines: int) -> Layout:
        return Layout.of(
            known,
            indexes,
            policy=policy,
            rows=global_batch_size * (1 if in_sync else pipelines),
            num_pipelines=pipelines,
            asked=state.canonical_shards,
            drop_remainder=drop_remainder,
            in_sync=in_sync,
            # Records that turn out to be lost leave steps that are not full.
            is_exact=not skip_corrupt,
        )

    buffer = shuffle_buffer if training else 0

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        pipeline = Pipeline(
            layout(context.num_input_pipelines),
            source,
            state=state,
            num_pipelines=context.num_input_pipelines,
            own=context.input_pipeline_id,
            replicas=max(1, context.num_replicas_in_sync // context.num_input_pipelines) if in_sync else 1,
        )
        dataset = pipeline.dataset(parse, training=training, shuffle_buffer=buffer, cache=cache)
        if num_threads is not None:
            options = tf.data.Options()
            options.threading.private_threadpool_size = num_threads
            dataset = dataset.with_options(options)
        return dataset

    here = layout(num_pipelines)
    if state.step >= here.steps:
        raise ValueError(
            f"expected a step below the {here.steps} of an epoch, received {state.step}; count with InputState.after()."
        )
    replicas = strategy.num_replicas_in_sync
    get_logger().log(
        logging.INFO if training else logging.DEBUG,
        "%d files, %d records by %s, %d %s of %d records: %s, imbalance %.3f; each replica gets %d records a step",
        len(known),
        records,
        how,
        here.steps,
        "steps an epoch" if training else "steps",
        global_batch_size,
        f"{here.plan.policy} over {len(here.plan.shards)} canonical shards",
        here.plan.imbalance,
        global_batch_size // replicas,
    )
    if here.plan.policy == "records" and len(known) < num_pipelines:
        get_logger().warning(
            "%d files for %d input pipelines: they are split by record; write at least %d files",
            len(known),
            num_pipelines,
            num_pipelines,
        )
    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    dataset.steps_per_epoch, dataset.plan = here.steps, here.plan
    dataset.state = dataclasses.replace(state, canonical_shards=len(here.plan.shards))
    return dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What every pipeline knows of all of them.

    Attributes:
        plan: of the canonical shards.
        table: the same as constants.
        rows: of a step that are taken from each shard.
        pipeline_steps: of each pipeline in an epoch.
        in_sync: whether pipelines make their steps together.
        is_even: whether all steps are full.
    """

    plan: ShardPlan
    table: ShardTable
    rows: int
    pipeline_steps: np.ndarray
    in_sync: bool
    is_even: bool

    @classmethod
    def of(
        cls,
        files: Sequence[File],
        indexes: dict[str, RecordIndex],
        *,
        policy: str,
        rows: int,
        num_pipelines: int,
        asked: int | None,
        drop_remainder: bool,
        in_sync: bool,
        is_exact: bool,
    ) -> Layout:
        """Deals files into canonical shards for steps of so many rows."""
        full_files = [file for file in files if file.size]
        shards = num_pipelines
        if policy != "replicate":
            most = len(full_files) if policy == "files" else None
            shards = choose_canonical_shards(rows, num_pipelines, asked, most=most)
        plan = plan_shards(full_files, shards, policy=policy)
        table = ShardTable(plan, indexes)
        each = rows // shards
        full, partial = table.records // each, -(-table.records // each)
        of_pipelines = (full if drop_remainder else partial).reshape([num_pipelines, -1])
        steps = of_pipelines.min(axis=1) if drop_remainder else of_pipelines.max(axis=1)
        if in_sync:
            steps[:] = steps.min() if drop_remainder else steps.max()
        if drop_remainder and not steps.min():
            raise ValueError(
                f"expected at least {each} records in each of {shards} canonical shards with drop_remainder=True, "
                f"received {table.records.min()}; lower global_batch_size, or use the policy 'records'."
            )
        is_even = is_exact and bool((full.reshape([num_pipelines, -1]) >= steps[:, None]).all())
        return cls(plan=plan, table=table, rows=each, pipeline_steps=steps, in_sync=in_sync, is_even=is_even)

    @property
    def steps(self) -> int:
        """Steps of an epoch: those that all pipelines make together, or each by itself."""
        return int(self.pipeline_steps.max() if self.in_sync else self.pipeline_steps.sum())


class Pipeline:
    """The batches of one input pipeline.

    Args:
        layout: of all shards.
        source: how files are read.
        state: where to begin.
        num_pipelines: how many pipelines there are.
        own: which one this is, a number or a scalar tensor.
        replicas: how many of its batches make a step.
    """

    def __init__(
        self, layout: Layout, source: Source, *, state: InputState, num_pipelines: int, own: Any, replicas: int
    ) -> None:
        self._layout, self._source, self._state = layout, source, state
        self._shards = len(layout.plan.shards) // num_pipelines
        self._own = tf.cast(own, tf.int64)
        self._replicas = replicas
        self._batch = layout.rows * self._shards // replicas

    def dataset(self, parse: Parser, *, training: bool, shuffle_buffer: int, cache: bool) -> tf.data.Dataset:
        """Returns the batches of each replica in turn, step by step."""
        shards = self._layout.plan.shards
        group = min(OPEN_FILES, max(len(shard) for shard in shards))
        window = max(1, shuffle_buffer // len(shards) // group)
        order = Order(seed=self._state.seed, group=group, window=window)
        if not shuffle_buffer:
            order = Order(seed=None, group=1, window=max(64, self._layout.rows))
        first = self._own * self._shards
        table, source = self._layout.table, self._source
        if cache:
            table, source = ShardTable(positions(self._layout.plan), {}), POSITIONS
        steps = tf.data.Dataset.range(first, first + self._shards).interleave(
            lambda shard: self._steps_of(shard, table, order, source, training=training),
            cycle_length=self._shards,
            num_parallel_calls=self._shards,
            deterministic=True,
        )
        if cache:
            steps = picked(steps, self._layout.table, first=first, shards=self._shards, source=self._source)
        chunk = min(CHUNK, self._batch)
        if self._layout.is_even:
            parsed = steps.rebatch(chunk).map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            return parsed.rebatch(self._batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        padded = tf.data.Dataset.zip((steps.ragged_batch(self._shards), self._padding(parse.file))).map(self._pad)
        parsed = padded.rebatch(chunk).map(
            lambda records, is_row: (parse(records), is_row),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        batches = parsed.rebatch(self._batch, drop_remainder=True)
        return batches.map(_without_padding).prefetch(tf.data.AUTOTUNE)

    def _steps_of(
        self, shard: tf.Tensor, table: ShardTable, order: Order, source: Source, *, training: bool
    ) -> tf.data.Dataset:
        """What each step takes from a shard: its rows, fewer at the end of an epoch."""
        layout, state = self._layout, self._state

        def epoch_of(epoch: tf.Tensor) -> tf.data.Dataset:
            begin = tf.where(tf.equal(epoch, state.epoch), tf.constant(state.step, tf.int64), 0)
            records = read_shard(table, shard, epoch, begin * layout.rows, order=order, source=source)
            steps = records.rebatch(layout.rows)
            empty = tf.nest.map_structure(lambda spec: _no_rows(spec), steps.element_spec)
            steps = steps.concatenate(tf.data.Dataset.from_tensors(empty).repeat())
            count = tf.gather(tf.constant(layout.pipeline_steps, tf.int64), self._own)
            return steps.take(tf.maximum(count - begin, 0))

        last = _FOREVER if training else state.epoch + 1
        return tf.data.Dataset.range(state.epoch, last).flat_map(epoch_of).prefetch(2)

    def _padding(self, file: str) -> tf.data.Dataset:
        """Any record, for ever: it fills the batches of the last steps until they are parsed."""
        record = tf.data.Dataset.from_tensors(tf.constant(file)).flat_map(self._source.first)
        # What is read ahead completes the cache also for one step.
        return record.cache().prefetch(2).repeat()

    def _pad(self, rows: Any, padding: Any) -> tuple[Any, tf.Tensor]:
        """Deals the rows of a step to the replicas as evenly as they go, and fills up their batches."""
        rows = tf.nest.map_structure(lambda ragged: ragged.values, rows)
        count = tf.shape(tf.nest.flatten(rows)[0])[0]
        bounds = tf.range(self._replicas + 1) * count // self._replicas
        place = tf.range(self._batch)[None, :]
        chosen = tf.where(place < (bounds[1:] - bounds[:-1])[:, None], bounds[:-1, None] + place, count)
        chosen = tf.reshape(chosen, [-1])
        filled = tf.nest.map_structure(
            lambda values, one: tf.gather(tf.concat([values, one[None]], 0), chosen), rows, padding
        )
        return filled, chosen < count


def _no_rows(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0, *spec.shape[1:]], spec.dtype)


def _without_padding(batch: Any, is_row: tf.Tensor) -> Any:
    count = tf.reduce_sum(tf.cast(is_row, tf.int32))

    def cut(values: Any) -> Any:
        if isinstance(values, tf.SparseTensor):
            size = tf.concat([tf.cast(count, tf.int64)[None], values.dense_shape[1:]], 0)
            return tf.sparse.slice(values, tf.zeros_like(values.dense_shape), size)
        return values[:count]

    return tf.nest.map_structure(cut, batch)


def _state_of(state: InputState | None, seed: int | None) -> InputState:
    if state is not None and seed is not None:
        raise ValueError(f"expected seed or state, received both, {seed} and {state}; give the seed to InputState.")
    return InputState(seed=seed or 0) if state is None else state


def _check_numbers(
    strategy: Any, global_batch_size: int, shuffle_buffer: int, policy: str, training: bool, num_threads: int | None
) -> None:
    replicas = strategy.num_replicas_in_sync
    if global_batch_size < 1 or global_batch_size % replicas:
        raise ValueError(
            f"expected global_batch_size to be a multiple of the {replicas} replicas, received {global_batch_size}; "
            f"take {max(1, round(global_batch_size / replicas)) * replicas}."
        )
    if shuffle_buffer < 0:
        raise ValueError(f"expected shuffle_buffer to be 0 or more, received {shuffle_buffer}; 0 does not shuffle.")
    if policy == "replicate" and not training:
        raise ValueError(
            "expected a policy that reads every record once for evaluation, received 'replicate'; use auto."
        )
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"expected num_threads to be at least 1, received {num_threads}; leave it out.")


def _place(strategy: Any) -> tuple[int, int]:
    """Returns the number of input pipelines and which one is this process's, as far as the cluster says."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts, 0
    resolver = getattr(strategy, "cluster_resolver", None)
    jobs = resolver.cluster_spec().as_dict() if resolver is not None else {}
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return max(1, len(jobs.get("worker", ()))), 0
    chiefs = len(jobs.get("chief", ()))
    if resolver is None or not jobs:
        return 1, 0
    own = (resolver.task_id or 0) + (chiefs if resolver.task_type == "worker" else 0)
    return max(1, chiefs + len(jobs.get("worker", ()))), own


def _sum_over_workers(strategy: Any, counts: np.ndarray) -> np.ndarray:
    """Returns the sum of every worker's array; each of its replicas adds the same, of which one counts."""

    def add() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        local = strategy.num_replicas_in_sync // _place(strategy)[0]
        is_first = context.replica_id_in_sync_group % local == 0
        mine = tf.where(is_first, tf.constant(counts), tf.zeros_like(counts))
        return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

    return strategy.experimental_local_results(strategy.run(tf.function(add)))[0].numpy()
