"""StepQueue: schedules steps ahead on the workers of a parameter-server cluster and returns their results in order."""

from __future__ import annotations

import collections
import threading
import time
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.keras_compat.parameter_server.feeds import BatchFeed, WorkerFeed
from tfdist.keras_compat.parameter_server.step_function import StepFunction

# High enough that no worker waits while the coordinator fetches a result, low enough that training stops quickly.
_STEPS_AHEAD_PER_WORKER = 2
_REPORT_EVERY_SECONDS = 60.0
_POLL_SECONDS = 0.001


class StepQueue:
    """Iterator over the outputs of the steps of one pass over a feed; schedules further steps ahead.

    Args:
        feed: the source of batches.
        num_workers: the number of worker tasks.

    Attributes:
        step: the function that each step runs; to be set before the first step.
    """

    def __init__(self, feed: BatchFeed | WorkerFeed, *, num_workers: int) -> None:
        self.step: StepFunction | None = None
        self._feed = feed
        self._most_pending = _STEPS_AHEAD_PER_WORKER * num_workers
        self._allowed: int | None = None
        self._feed_ended = False
        self._pending: collections.deque = collections.deque()

    def __iter__(self) -> StepQueue:
        return self

    def grant(self, steps: int | None) -> None:
        """Sets the number of further steps that may be scheduled; None for as many steps as there is data."""
        self._allowed = steps

    def __next__(self) -> list[Any]:
        """Returns the outputs of the next finished step.

        Raises:
            StopIteration: if no data is left, or if the number of allowed steps is reached.
            Exception: the error that the step raised on its worker.
        """
        try:
            return self._next_outputs()
        except StopIteration:
            raise
        except Exception as error:
            cause = self.drain()
            # A step that fails cancels all scheduled steps. The step awaited here may be one of the cancelled steps.
            if isinstance(error, tf.errors.CancelledError) and cause is not None:
                raise cause from None
            raise

    def drain(self) -> Exception | None:
        """Waits for the scheduled steps and drops their results; returns the error of a failed step, or None."""
        self._pending.clear()
        try:
            if self.step is not None:
                with _ReportingSlowSteps():
                    self.step.coordinator.join()
        except Exception as error:
            return error
        return None

    def _next_outputs(self) -> list[Any]:
        while True:
            self._schedule_ahead()
            if not self._pending:
                raise StopIteration
            with _ReportingSlowSteps():
                fetched = self._next_result().fetch()
            outputs = self._feed.outputs_of(fetched)
            if outputs is not None:
                return outputs
            # A step that found no data does not count as one of the allowed steps.
            if self._allowed is not None:
                self._allowed += 1

    def _next_result(self) -> Any:
        """Returns the result of the oldest step; with staleness, that of a finished step, if there is one before.

        A slow worker would otherwise keep the others waiting for its step.
        """
        oldest = self._pending[0]
        strategy = getattr(getattr(self.step, "coordinator", None), "strategy", None)
        while getattr(strategy, "tfdist_updates", None) is not None:
            for result in self._pending:
                if result._status_available_event.is_set():
                    self._pending.remove(result)
                    return result
            oldest._status_available_event.wait(_POLL_SECONDS)
        return self._pending.popleft()

    def _schedule_ahead(self) -> None:
        if self.step is None:
            raise RuntimeError("expected StepQueue.step to be set before the first step, received None.")
        while len(self._pending) < self._most_pending and not self._feed_ended and self._allowed != 0:
            scheduled = self._feed.schedule(self.step)
            if scheduled is None:
                self._feed_ended = True
                return
            self._pending.append(scheduled)
            if self._allowed is not None:
                self._allowed -= 1


def step_queue(dataset: Any, *, on_workers: bool, num_workers: int) -> StepQueue:
    """Returns the queue for one pass over a dataset.

    Args:
        dataset: a dataset from `per_worker_dataset`, or any iterable of batches for the coordinator to read.
        on_workers: whether the dataset is from `per_worker_dataset`.
        num_workers: the number of worker tasks.
    """
    feed = WorkerFeed(dataset, num_workers) if on_workers else BatchFeed(dataset)
    return StepQueue(feed, num_workers=num_workers)


class _ReportingSlowSteps:
    """A context that logs a warning every minute while the coordinator waits for a step."""

    def __enter__(self) -> None:
        self._done = threading.Event()
        threading.Thread(target=self._report, args=(time.monotonic(), self._done), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._done.set()

    @staticmethod
    def _report(since: float, done: threading.Event) -> None:
        while not done.wait(_REPORT_EVERY_SECONDS):
            get_logger().warning(
                "still waiting after %.0f s for a step on the workers; a worker may be slow or lost (the step of a "
                "lost worker runs again when that worker is back)",
                time.monotonic() - since,
            )
