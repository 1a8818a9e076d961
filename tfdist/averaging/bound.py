"""The stale synchronous bound: a worker does not begin a step while it is too far ahead of the slowest live worker.

Every worker takes its steps from a queue in the coordinator. The bound is kept there, and not by a wait in the step:
the coordinator knows which workers are lost, and a worker that waits holds no lock and no thread of a parameter server.

Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger

# A lost worker, and the end of a wait, are noticed after this time at the latest.
_POLL_SECONDS = 0.02
# A worker whose step takes longer is stuck; a worker that does not answer at all ends the training earlier.
_STUCK_SECONDS = 600.0


def holds_back(worker: int, *, finished: Mapping[int, int], live: Mapping[int, bool], bound: int) -> int | None:
    """Returns the live worker for which a worker has to wait before its next step, or None.

    Args:
        worker: the worker that wants to begin a step.
        finished: the number of steps that each worker has finished.
        live: whether the others have to wait for each worker.
        bound: how many steps a worker may be ahead.

    Example:
        >>> from tfdist.averaging.bound import holds_back
        >>> holds_back(0, finished={0: 3, 1: 0}, live={0: True, 1: True}, bound=2)
        1
        >>> holds_back(0, finished={0: 2, 1: 0}, live={0: True, 1: True}, bound=2)
        >>> holds_back(0, finished={0: 3, 1: 0}, live={0: True, 1: False}, bound=2)
    """
    slowest = min((w for w in finished if live[w]), key=lambda w: finished[w], default=worker)
    return slowest if finished[worker] - finished[slowest] > bound else None


@dataclasses.dataclass
class _Standing:
    """Where a worker stands.

    Attributes:
        finished: the number of steps that it has finished, and of those that it skips after the others went on.
        left_behind: whether the others have gone on without it, because it was lost or stuck in a step.
        began: when its present step began.
        has_asked: whether it has asked for a step since the bound was made. Before, its thread waits for a first step,
            and does not tell when it gets it.
    """

    finished: int = 0
    left_behind: bool = False
    began: float | None = None
    has_asked: bool = False


class Bound:
    """Keeps the bound for the steps that a ClusterCoordinator schedules.

    Args:
        coordinator: the ClusterCoordinator of the strategy.
        bound: how many steps a worker may be ahead of the slowest live worker.
        stuck_seconds: a worker whose step takes longer does not hold the others back until it has finished the step.
    """

    def __init__(self, coordinator: Any, bound: int, *, stuck_seconds: float = _STUCK_SECONDS) -> None:
        self._bound, self._stuck_seconds = bound, stuck_seconds
        cluster = coordinator._cluster
        self._workers, self._queue = cluster.workers, cluster.closure_queue
        self._standings = {worker.worker_index: _Standing() for worker in self._workers}
        self._names = {f"WorkerClosureProcessingLoop-{index}": index for index in self._standings}
        self._stuck: set[int] = set()
        self._lock = threading.Lock()
        self._step_is_finished = threading.Condition()
        queue = self._queue
        queue.get = self._getting(queue.get)
        queue.mark_finished = self._finishing(queue.mark_finished)

    @property
    def finished(self) -> dict[int, int]:
        """The number of steps by which each worker is judged: those it finished, and those it skipped."""
        with self._lock:
            return {worker: standing.finished for worker, standing in self._standings.items()}

    def _getting(self, stock: Callable) -> Callable:
        @functools.wraps(stock)
        def get(timeout: float | None = None, tag: int | None = None) -> Any:
            if tag is None:
                return stock(timeout=timeout, tag=tag)
            with self._lock:
                self._standings[tag].began, self._standings[tag].has_asked = None, True
            while self._slowest(tag) is not None:
                # What builds datasets on the worker is no step, and does not wait.
                with self._queue._queue_lock:
                    if not self._queue._should_process_closures:
                        return None
                    if not self._queue._tagged_queue[tag].empty():
                        return self._queue._tagged_queue[tag].get(block=False)
                # Not a wait for the queue's own condition: a new step notifies one of those who wait for it, and a
                # worker that may not take the step would use up the notification for which the slowest one waits.
                with self._step_is_finished:
                    self._step_is_finished.wait(timeout=_POLL_SECONDS)
            closure = stock(timeout=timeout, tag=tag)
            if closure is not None and closure.tag is None:
                with self._lock:
                    self._standings[tag].began = time.monotonic()
            return closure

        return get

    def _finishing(self, stock: Callable) -> Callable:
        @functools.wraps(stock)
        def mark_finished() -> None:
            worker = self._names.get(threading.current_thread().name)
            if worker is not None:
                with self._lock:
                    self._standings[worker].finished += 1
                    self._standings[worker].began = None
                    if worker in self._stuck:
                        self._stuck.discard(worker)
                        self._standings[worker].left_behind = True
            stock()
            with self._step_is_finished:
                self._step_is_finished.notify_all()

        return mark_finished

    def _slowest(self, worker: int) -> int | None:
        """Returns the worker for which another one has to wait, or None."""
        now = time.monotonic()
        with self._lock:
            live = {index: self._is_live(index, now) for index in self._standings}
            finished = {index: standing.finished for index, standing in self._standings.items()}
            own = self._standings[worker]
            if own.left_behind and not self._workers[worker]._is_dead_with_error:
                # The worker is back, or has left the step. It goes on beside the slowest of the others, which did not
                # wait for it.
                others = [finished[index] for index in finished if index != worker and live[index]]
                own.finished = finished[worker] = max(own.finished, min(others, default=own.finished))
                own.left_behind, live[worker] = False, True
            return holds_back(worker, finished=finished, live=live, bound=self._bound)

    def _is_live(self, index: int, now: float) -> bool:
        standing = self._standings[index]
        if not standing.has_asked and standing.began is None:
            # Another worker asks for its next step: this one has its first step, which a waiting thread takes at once.
            standing.began = now
        if self._workers[index]._is_dead_with_error:
            standing.left_behind = True
        elif standing.began is not None and now - standing.began > self._stuck_seconds and index not in self._stuck:
            self._stuck.add(index)
            get_logger().warning(
                "worker %d has been in one step for %.0f s; the others do not wait for it until it has finished the "
                "step, although staleness.bound is %d",
                index,
                now - standing.began,
                self._bound,
            )
        return not standing.left_behind and index not in self._stuck


def keep_bound(strategy: tf.distribute.Strategy, bound: int) -> Bound:
    """Makes the ClusterCoordinator of a strategy keep a bound; returns what keeps it.

    Args:
        strategy: a parameter-server strategy, on its coordinator.
        bound: how many steps a worker may be ahead of the slowest live worker.
    """
    # A strategy has one ClusterCoordinator: the constructor returns it if it exists.
    return Bound(tf.distribute.coordinator.ClusterCoordinator(strategy), bound)
