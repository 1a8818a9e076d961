"""The bound on the queue of a ClusterCoordinator, with threads that stand for its workers."""

from __future__ import annotations

import logging
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
from tensorflow.python.distribute.coordinator.cluster_coordinator import _CoordinatedClosureQueue

from tfdist.averaging.bound import Bound, holds_back


class Cluster:
    """The parts of a ClusterCoordinator that a Bound uses: workers with scripted steps, and the real queue."""

    def __init__(self, workers: int, bound: int, *, stuck_seconds: float = 600.0, wait_before: bool = False) -> None:
        self.closure_queue = _CoordinatedClosureQueue()
        self.workers = [types.SimpleNamespace(worker_index=i, _is_dead_with_error=None) for i in range(workers)]
        self.may_finish = [threading.Semaphore(0) for _ in range(workers)]
        self.resources: list[int] = []
        if wait_before:
            # As those of a ClusterCoordinator, whose constructor starts them.
            self._start(workers)
        self.bound = Bound(types.SimpleNamespace(_cluster=self), bound, stuck_seconds=stuck_seconds)
        if not wait_before:
            self._start(workers)

    def _start(self, workers: int) -> None:
        for index in range(workers):
            name = f"WorkerClosureProcessingLoop-{index}"
            threading.Thread(target=self._work, args=(index,), name=name, daemon=True).start()

    def _work(self, index: int) -> None:
        while (closure := self.closure_queue.get(tag=index)) is not None:
            if closure.tag is not None:
                self.resources.append(closure.tag)
                continue
            assert self.may_finish[index].acquire(timeout=20)
            self.closure_queue.mark_finished()

    def schedule(self, steps: int) -> None:
        for _ in range(steps):
            self.closure_queue.put(types.SimpleNamespace(tag=None, mark_cancelled=lambda: None))

    def stop(self) -> None:
        self.closure_queue.stop()


@pytest.fixture
def cluster_of() -> Any:
    made: list[Cluster] = []

    def make(*args: Any, **kwargs: Any) -> Cluster:
        made.append(Cluster(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        for semaphore in one.may_finish:
            semaphore.release(1000)
        one.stop()


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("bound", [0, 2])
def test_a_worker_waits_once_it_is_more_than_the_bound_ahead(cluster_of: Any, bound: int) -> None:
    cluster = cluster_of(3, bound)
    cluster.schedule(30)
    cluster.may_finish[0].release(30)
    cluster.may_finish[1].release(1)
    until(lambda: cluster.bound.finished[0] == bound + 1)
    time.sleep(0.2)
    # Worker 2 has finished no step.
    assert cluster.bound.finished == {0: bound + 1, 1: 1, 2: 0}
    cluster.may_finish[2].release(1)
    until(lambda: cluster.bound.finished == {0: bound + 2, 1: 1, 2: 1})


def test_a_worker_that_waits_does_not_use_up_a_notification_for_the_slowest(cluster_of: Any) -> None:
    """A new step notifies one worker: if that worker may not take the step, the slowest one would never take it."""
    cluster = cluster_of(2, 0)
    condition, waiting = cluster.closure_queue._closures_queued_condition, []
    stock = condition.wait

    def wait(timeout: float | None = None) -> bool:
        waiting.append(threading.current_thread().name)
        return stock(timeout)

    cluster.schedule(2)
    until(lambda: cluster.closure_queue._queue.empty())
    condition.wait = wait
    cluster.may_finish[0].release(1)
    until(lambda: cluster.bound.finished == {0: 1, 1: 0})
    time.sleep(0.2)
    assert waiting == []
    cluster.may_finish[1].release(1)
    until(lambda: sorted(waiting) == ["WorkerClosureProcessingLoop-0", "WorkerClosureProcessingLoop-1"])


def test_a_worker_that_waits_builds_its_datasets(cluster_of: Any) -> None:
    cluster = cluster_of(2, 0)
    cluster.schedule(10)
    cluster.may_finish[0].release(10)
    until(lambda: cluster.bound.finished[0] == 1)
    cluster.closure_queue.put(types.SimpleNamespace(), tag=0)
    until(lambda: cluster.resources == [0])
    assert cluster.bound.finished == {0: 1, 1: 0}


def test_nobody_waits_for_a_lost_worker_and_it_returns_beside_the_slowest(cluster_of: Any) -> None:
    cluster = cluster_of(3, 1)
    cluster.schedule(100)
    cluster.workers[2]._is_dead_with_error = RuntimeError("gone")
    cluster.may_finish[0].release(20)
    cluster.may_finish[1].release(20)
    until(lambda: cluster.bound.finished[0] == 20 and cluster.bound.finished[1] == 20)
    cluster.workers[2]._is_dead_with_error = False
    cluster.may_finish[2].release(1)
    # Worker 2 finishes the step that it has begun, and would hold back the others if its steps counted from 0.
    until(lambda: cluster.bound.finished[2] >= 20)


def test_the_end_of_the_queue_ends_the_wait(cluster_of: Any) -> None:
    cluster = cluster_of(2, 0)
    cluster.schedule(4)
    cluster.may_finish[0].release(4)
    until(lambda: cluster.bound.finished[0] == 1)
    before = threading.active_count()
    cluster.stop()
    until(lambda: threading.active_count() < before)


def test_a_worker_that_is_stuck_in_its_first_step_is_named_too(
    cluster_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tfdist")
    cluster = cluster_of(2, 0, stuck_seconds=0.3, wait_before=True)
    cluster.schedule(6)
    cluster.may_finish[0].release(4)
    until(lambda: cluster.bound.finished[0] == 4)
    assert "worker 1 has been in one step for" in caplog.text


def test_a_worker_that_is_stuck_in_a_step_is_named_and_does_not_hold_the_others_back(
    cluster_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="tfdist")
    cluster = cluster_of(2, 1, stuck_seconds=0.3)
    cluster.schedule(30)
    cluster.may_finish[0].release(10)
    until(lambda: cluster.bound.finished[0] == 10)
    assert "worker 1 has been in one step for 0 s; the others do not wait for it until it has finished" in caplog.text
    assert len(caplog.records) == 1
    # It skips the steps that the others have made meanwhile, so that they do not wait for all of them now.
    cluster.may_finish[1].release(1)
    until(lambda: cluster.bound.finished[1] == 10)
    cluster.may_finish[0].release(1)
    until(lambda: cluster.bound.finished[0] == 11)


def test_a_worker_waits_for_the_slowest_live_worker() -> None:
    live = {0: True, 1: True, 2: True}
    assert holds_back(0, finished={0: 5, 1: 2, 2: 3}, live=live, bound=2) == 1
    assert holds_back(0, finished={0: 5, 1: 2, 2: 3}, live={**live, 1: False}, bound=2) is None
    assert holds_back(1, finished={0: 5, 1: 2, 2: 3}, live=live, bound=0) is None
    assert holds_back(0, finished={0: 5, 1: 2}, live={0: False, 1: False}, bound=0) is None
