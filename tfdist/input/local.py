"""The policy `local`: each worker reads all files that it finds on its own host, which the other workers do not have.

Amazon SageMaker gives each host its own files with ShardedByS3Key. The workers exchange only how many records they
have, so that all of them make the same number of steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist.input.index import RecordIndex
from tfdist.input.parse import Parser
from tfdist.input.plan import File, Segment, ShardPlan
from tfdist.input.read import ShardTable, Source
from tfdist.input.state import InputState
from tfdist.workers import count_workers, run_on_every_worker, worker_index

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """The files of this process with their numbers of records.

    Attributes:
        files: the files.
        indexes: indexes of the files that have one, by name.
        how: how the records were counted.
        source: how the files are read.
        parse: maps records to examples; None without records.
        others: numbers of files, records and bytes of each worker with the policy `local`; empty with other policies.
        worker: the number of this worker.
    """

    files: list[File]
    indexes: dict[str, RecordIndex]
    how: str
    source: Source
    parse: Parser | None
    others: tuple[tuple[int, int, int], ...] = ()
    worker: int = 0

    @property
    def records(self) -> int:
        """The number of records of all workers."""
        if self.others:
            return sum(records for _, records, _ in self.others)
        return sum(file.records or 0 for file in self.files)

    @property
    def num_files(self) -> int:
        """The number of files of all workers."""
        return sum(files for files, _, _ in self.others) if self.others else len(self.files)

    def parser(self) -> Parser:
        """Returns what maps records to examples. There are records."""
        assert self.parse is not None
        return self.parse


def together(strategy: tf.distribute.Strategy | None, action: Callable[[], T], *, to: str) -> T:
    """Returns the result of an action, which every worker calls; raises an error on all of them if it fails on one.

    Args:
        strategy: the strategy of the workers; None if this worker acts alone.
        action: what the workers do.
        to: what they do, in words, for messages.

    Example:
        >>> import tfdist
        >>> from tfdist.input.local import together
        >>> together(tfdist.create_strategy("one_device"), lambda: "found", to="look")
        'found'
    """
    if strategy is None:
        return action()
    results: list[T] = []

    def act() -> tuple[int, ...]:
        results.append(action())
        return ()

    run_on_every_worker(strategy, act, width=0, to=to)
    return results[0]


def on_every_worker(strategy: tf.distribute.Strategy, count: Callable[[], Counted]) -> Counted:
    """Returns the files of this worker, and how many records the other workers have; every worker calls it.

    Args:
        strategy: the strategy of the workers.
        count: finds and counts the files of this worker.

    Raises:
        ValueError: on every worker, if a worker has no records.
        OSError: if another worker has failed; the error of `count` if this worker has.
    """
    found: list[Counted] = []

    def action() -> tuple[int, int, int, int]:
        own = count()
        found.append(own)
        names = repr([(file.name, file.size, file.records) for file in own.files])
        digest = int.from_bytes(hashlib.sha256(names.encode()).digest()[:7], "big")
        records, size = (sum(numbers) for numbers in zip(*((f.records or 0, f.size) for f in own.files), strict=True))
        return len(own.files), records, size, digest

    rows = run_on_every_worker(strategy, action, width=4, to="find and count its files in distribute_files")
    empty = [worker for worker, row in enumerate(rows) if not row[1]]
    if empty:
        raise ValueError(
            f"expected records on every worker with the policy 'local', received none on worker {empty[0]} and "
            f"{max(row[1] for row in rows)} on another one; give each host files, or start fewer workers."
        )
    if len(rows) > 1 and len({row[3] for row in rows}) == 1:
        get_logger().warning(
            "expected other files on each host with the policy 'local', received %d files with the same names and "
            "sizes on all %d workers; if these are the same files, use the policy 'auto', which uses each record once",
            rows[0][0],
            len(rows),
        )
    others = tuple((files, records, size) for files, records, size, _ in rows)
    return dataclasses.replace(found[0], others=others, worker=worker_index(strategy))


def plan_of(counted: Counted) -> tuple[ShardPlan, ShardTable]:
    """Returns a plan with one shard for each worker, and its table, which has the segments of this worker alone.

    Args:
        counted: the files of this worker, and the numbers of all workers.

    Example:
        >>> from tfdist.input.plan import File
        >>> own = [File(name="a", size=30, records=3)]
        >>> numbers = ((1, 3, 30), (2, 5, 50))
        >>> plan, table = plan_of(
        ...     Counted(files=own, indexes={}, how="", source=None, parse=None, others=numbers, worker=0)
        ... )
        >>> plan.records, table.records.tolist(), plan.shards[1][0].file
        ((3, 5), [3, 5], '2 files of worker 1')
    """
    files = sorted((file for file in counted.files if file.size), key=lambda file: file.name)
    own = tuple(Segment(file=file.name, stop=file.records, size=file.size) for file in files)
    shards: list[tuple[Segment, ...]] = [
        (Segment(file=f"{number} files of worker {worker}", stop=records, size=size),)
        for worker, (number, records, size) in enumerate(counted.others)
    ]
    mine: list[tuple[Segment, ...]] = [() for _ in shards]
    shards[counted.worker], mine[counted.worker] = own, own
    table = ShardTable(ShardPlan(policy="local", shards=tuple(mine)), counted.indexes)
    # Steps are counted from the records of all workers.
    table.records = np.array([records for _, records, _ in counted.others], np.int64)
    return ShardPlan(policy="local", shards=tuple(shards)), table


def check_local(strategy: tf.distribute.Strategy, state: InputState, *, num_pipelines: int) -> None:
    """Checks that each pipeline is built by the worker that has its files, and that a position is one of these workers.

    Args:
        strategy: the strategy of the workers.
        state: position at which reading begins.
        num_pipelines: number of input pipelines.

    Raises:
        ValueError: for a parameter server strategy and a TPU of several hosts, and for a position of another number of
            workers.

    Example:
        >>> import tfdist
        >>> check_local(tfdist.create_strategy("one_device"), InputState(canonical_shards=2), num_pipelines=1)
        Traceback (most recent call last):
        ValueError: expected a position of 1 worker with the policy 'local', received one of 2; ...
    """
    if num_pipelines != count_workers(strategy) or isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise ValueError(
            "expected a strategy whose workers run the program themselves with the policy 'local', received "
            f"{type(strategy).__name__}; use the policy 'auto' with files that every worker reads."
        )
    if state.canonical_shards not in (None, num_pipelines):
        raise ValueError(
            f"expected a position of {num_pipelines} worker{'s' * (num_pipelines > 1)} with the policy 'local', "
            f"received one of {state.canonical_shards}; the batches of other hosts cannot be continued: begin an epoch "
            "with InputState(seed=..., epoch=...)."
        )
