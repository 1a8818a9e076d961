"""The workers that train one model together: their number, the index of this worker, and exchange between workers.

Every function that exchanges values is collective: all workers call it, in the same order. A worker that waits longer
than a minute for the other workers writes to the log which call they have to make.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tfdist._needs_tensorflow  # noqa: F401  # isort: skip
import numpy as np
import tensorflow as tf

from tfdist._log import get_logger

__all__ = [
    "agree",
    "count_workers",
    "exchange",
    "is_chief",
    "run_on_every_worker",
    "saying_what_it_waits_for",
    "sum_over_workers",
    "worker_index",
]

_PATIENCE_SECONDS = 60.0
# After one of these errors the workers cannot reach each other, so that they cannot agree on anything.
LOST_CLUSTER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)


def count_workers(strategy: tf.distribute.Strategy | None) -> int:
    """Returns how many processes run the program under this strategy: 1 for all but the multi-worker strategy.

    Args:
        strategy: any strategy, or None.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import count_workers
        >>> count_workers(tfdist.create_strategy("one_device"))
        1
    """
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return int(strategy.extended._num_workers)
    return 1


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of this worker, from 0; the chief is worker 0.

    Args:
        strategy: any strategy. The result is 0 for all but the multi-worker strategy.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import worker_index
        >>> worker_index(tfdist.create_strategy("one_device"))
        0
    """
    return int(strategy.extended._id_in_cluster) if count_workers(strategy) > 1 else 0


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether this process writes the files of the whole cluster.

    Args:
        strategy: any strategy. All but the multi-worker strategy have a single process that runs the program.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import is_chief
        >>> is_chief(tfdist.create_strategy("one_device"))
        True
    """
    return bool(getattr(strategy.extended, "should_checkpoint", True))


def sum_over_workers(strategy: tf.distribute.Strategy, values: np.ndarray) -> np.ndarray:
    """Returns the sum of the arrays of all workers, each counted once however many replicas its worker has.

    Args:
        strategy: the strategy of the workers. With one worker the array is returned as it is.
        values: an array of the same shape and dtype on every worker. Whole numbers are neither rounded nor compressed
            during the sum.

    Example:
        >>> import numpy as np, tfdist
        >>> from tfdist.workers import sum_over_workers
        >>> sum_over_workers(tfdist.create_strategy("one_device"), np.array([1, 2])).tolist()
        [1, 2]
    """
    workers = count_workers(strategy)
    if workers == 1:
        return values
    replicas_per_worker = strategy.num_replicas_in_sync // workers

    def of_replica(context: Any) -> tf.Tensor:
        is_first = context.replica_id_in_sync_group % replicas_per_worker == 0
        return tf.constant(values if is_first else np.zeros_like(values))

    per_replica = strategy.experimental_distribute_values_from_function(of_replica)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None).numpy()


def exchange(strategy: tf.distribute.Strategy, values: Sequence[float], *, dtype: str, to: str) -> list[tuple]:
    """Waits for all workers and returns the numbers of each worker, ordered by worker.

    Args:
        strategy: the strategy of the workers.
        values: the numbers of this worker; every worker passes the same number of values.
        dtype: the type of the numbers, such as "int64".
        to: what every worker has to do, such as "save 'model.keras'"; completes the log line of a worker that waits.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import exchange
        >>> exchange(tfdist.create_strategy("one_device"), [3, 4], dtype="int64", to="count")
        [(3, 4)]
    """
    table = np.zeros([count_workers(strategy), len(values)], dtype)
    table[worker_index(strategy)] = values
    with saying_what_it_waits_for(to):
        return [tuple(row) for row in sum_over_workers(strategy, table).tolist()]


def run_on_every_worker(
    strategy: tf.distribute.Strategy, action: Callable[[], Sequence[int]], *, width: int, to: str
) -> list[tuple[int, ...]]:
    """Runs an action on every worker and returns the numbers that it returned on each worker, ordered by worker.

    Args:
        strategy: the strategy of the workers.
        action: returns whole numbers.
        width: how many numbers the action returns.
        to: what the workers do, such as "save 'model.keras'", for messages.

    Raises:
        OSError: if the action failed on another worker; this worker's own error if it failed here.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import run_on_every_worker
        >>> run_on_every_worker(tfdist.create_strategy("one_device"), lambda: [7], width=1, to="look")
        [(7,)]
    """
    failure: Exception | None = None
    numbers: Sequence[int] = [0] * width
    try:
        numbers = action()
    except LOST_CLUSTER_ERRORS:
        raise
    except Exception as error:
        failure = error
    return agree(strategy, numbers, failure=failure, to=to)


def agree(
    strategy: tf.distribute.Strategy, numbers: Sequence[int], *, failure: Exception | None, to: str
) -> list[tuple[int, ...]]:
    """Waits for every worker and returns the whole numbers of each; raises on all workers if one has failed.

    Args:
        strategy: the strategy of the workers.
        numbers: the numbers of this worker; every worker passes the same number of them.
        failure: the error of this worker, or None.
        to: what the workers do, such as "save 'model.keras'", for messages.

    Raises:
        OSError: if another worker has failed; `failure` itself if this worker has.

    Example:
        >>> import tfdist
        >>> from tfdist.workers import agree
        >>> agree(tfdist.create_strategy("one_device"), [7], failure=None, to="look")
        [(7,)]
    """
    rows = exchange(strategy, [int(failure is not None), *numbers], dtype="int64", to=to)
    if failure is not None:
        raise failure
    failed = [worker for worker, row in enumerate(rows) if row[0]]
    if failed:
        raise OSError(
            f"expected every worker to {to}, received an error on worker {failed[0]}; see the log of that worker."
        )
    return [row[1:] for row in rows]


@contextlib.contextmanager
def saying_what_it_waits_for(to: str) -> Iterator[None]:
    """Writes a line to the log if the body takes longer than a minute.

    Args:
        to: what every worker has to do for the body to end, such as "save 'model.keras'".

    Example:
        >>> from tfdist.workers import saying_what_it_waits_for
        >>> with saying_what_it_waits_for("count records"):
        ...     pass
    """
    text = "still waiting after %.0f s for every worker to %s: all workers have to make this call, in the same order"
    timer = threading.Timer(_PATIENCE_SECONDS, get_logger().warning, (text, _PATIENCE_SECONDS, to))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
