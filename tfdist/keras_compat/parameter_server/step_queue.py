"""Runs steps on the workers of a parameter-server cluster, a few ahead, and hands back their results in order.

Two ways of feeding: batches that the coordinator reads and sends along with each step, for a plain dataset and for
arrays, each batch going to exactly one worker; and datasets that every worker builds and reads for itself.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger

# Enough that no worker waits for the coordinator to fetch a result, few enough that a stop takes effect at once.
_STEPS_AHEAD_PER_WORKER = 2
_EMPTY_POLL_SECONDS = 0.005
_REPORT_EVERY_SECONDS = 60.0


def count_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns how many workers a parameter-server strategy has."""
    # The public property `cluster_resolver` is None on this strategy.
    return strategy._cluster_resolver.cluster_spec().num_tasks("worker")


class BatchFeed:
    """Feeds each batch of one dataset to one worker.

    Args:
        dataset: any iterable of batches that the coordinator reads.
    """

    def __init__(self, dataset: Any) -> None:
        self._batches: Iterator = iter(dataset)

    def schedule(self, step: StepFunction) -> tf.distribute.experimental.coordinator.RemoteValue | None:
        """Schedules the step on the next batch; None when there is none."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        return step.coordinator.schedule(step.on_batch, args=(batch,))

    def outputs_of(self, fetched: Any) -> Any:
        """Returns a step's outputs from what it returned; None would be a step that found no data."""
        return fetched


def per_worker_dataset(dataset_fn: Callable, coordinator: Any, num_workers: int) -> Any:
    """Returns a dataset that every worker builds for itself, sharded by worker as far as dataset_fn shards.

    Args:
        dataset_fn: maps a tf.distribute.InputContext to a tf.data.Dataset of batches. Its input_pipeline_id is a scalar
            int64 tensor, since the function is traced once and runs on every worker.
        coordinator: the cluster's ClusterCoordinator.
        num_workers: how many workers there are.
    """
    num_replicas = coordinator.strategy.num_replicas_in_sync

    def build() -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return dataset_fn(
            tf.distribute.InputContext(
                num_input_pipelines=num_workers, input_pipeline_id=worker, num_replicas_in_sync=num_replicas
            )
        )

    return coordinator.create_per_worker_dataset(build)


class WorkerFeed:
    """Lets every worker read a dataset that it builds itself.

    Args:
        dataset: from per_worker_dataset.
        num_workers: how many workers there are.
    """

    def __init__(self, dataset: Any, num_workers: int) -> None:
        self._iterator = iter(dataset)
        self._num_workers = num_workers
        self._exhausted: set[int] = set()

    def schedule(self, step: StepFunction) -> tf.distribute.experimental.coordinator.RemoteValue | None:
        """Schedules the step on whichever worker is free; None once every worker has run out of data."""
        if len(self._exhausted) == self._num_workers:
            return None
        return step.coordinator.schedule(step.on_iterator, args=(self._iterator,))

    def outputs_of(self, fetched: Any) -> Any:
        """Returns a step's outputs, or None if the worker it came to had no data left."""
        has_data, worker, outputs = fetched
        if has_data:
            return outputs
        self._exhausted.add(int(worker))
        # A worker without data answers at once and would be asked again and again while others compute.
        time.sleep(_EMPTY_POLL_SECONDS)
        return None


class StepFunction:
    """One step of training or evaluation, traced once for batches and once for iterators.

    Args:
        step: maps a batch to a flat list of tensors; runs in replica context on a worker.
        coordinator: the cluster's ClusterCoordinator.
    """

    def __init__(self, step: Callable[[Any], list[tf.Tensor]], coordinator: Any) -> None:
        self.coordinator = coordinator
        strategy = coordinator.strategy

        def on_batch(batch: Any) -> list[tf.Tensor]:
            return strategy.run(step, args=(tf.nest.map_structure(_of_any_size, batch),))

        def on_iterator(iterator: Any) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
            worker = tf.distribute.coordinator.experimental_get_current_worker_index()
            optional = iterator.get_next_as_optional()
            specs: list[tf.TensorSpec] = []

            def run() -> list[tf.Tensor]:
                outputs = on_batch(optional.get_value())
                specs[:] = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
                return outputs

            def skip() -> list[tf.Tensor]:
                # tf.cond traces the other branch first, so that the shapes of its outputs are known here.
                return [tf.zeros([size or 0 for size in spec.shape], spec.dtype) for spec in specs]

            has_data = optional.has_value()
            return has_data, worker, tf.cond(has_data, run, skip)

        # Steps run on workers that have no autograph caller to convert for.
        do_not_convert = tf.autograph.experimental.do_not_convert
        self.on_batch = tf.function(do_not_convert(on_batch), reduce_retracing=True)
        self.on_iterator = tf.function(do_not_convert(on_iterator))


def _of_any_size(value: Any) -> Any:
    # As batches of a dataset are: with a size that is known Keras 3 weighs the losses of outputs by it, else not.
    if not isinstance(value, tf.Tensor) or not value.shape.rank:
        return value
    return tf.compat.v1.placeholder_with_default(value, [None, *value.shape[1:]])


class StepQueue:
    """The steps of one pass over a feed: scheduled ahead, results handed back one at a time.

    Args:
        feed: where batches come from.
        num_workers: how many workers there are.

    Attributes:
        step: what each step runs; to be set before the first.
    """

    def __init__(self, feed: BatchFeed | WorkerFeed, *, num_workers: int) -> None:
        self.step: StepFunction | None = None
        self._feed = feed
        self._ahead = _STEPS_AHEAD_PER_WORKER * num_workers
        self._left: int | None = None
        self._dry = False
        self._pending: collections.deque = collections.deque()

    def __iter__(self) -> StepQueue:
        return self

    def grant(self, steps: int | None) -> None:
        """Sets how many more steps may be scheduled, None for all the data."""
        self._left = steps

    def __next__(self) -> list[Any]:
        """Returns the outputs of the next finished step.

        Raises:
            StopIteration: when the data or the steps allowed have come to their end.
            Exception: what the step itself raised on its worker.
        """
        try:
            return self._next_outputs()
        except StopIteration:
            raise
        except Exception as error:
            cause = self.drain()
            # The steps under way are cancelled when one fails; the one awaited here may be among them.
            if isinstance(error, tf.errors.CancelledError) and cause is not None:
                raise cause from None
            raise

    def drain(self) -> Exception | None:
        """Waits for the steps under way and drops their results; returns the error that one of them ended with."""
        self._pending.clear()
        try:
            if self.step is not None:
                with _ReportingSlowness():
                    self.step.coordinator.join()
        except Exception as error:
            return error
        return None

    def _next_outputs(self) -> list[Any]:
        while True:
            self._schedule_ahead()
            if not self._pending:
                raise StopIteration
            with _ReportingSlowness():
                fetched = self._pending.popleft().fetch()
            outputs = self._feed.outputs_of(fetched)
            if outputs is not None:
                return outputs
            if self._left is not None:
                self._left += 1

    def _schedule_ahead(self) -> None:
        if self.step is None:
            raise RuntimeError("expected StepQueue.step to be set before the first step, received None; set it.")
        while len(self._pending) < self._ahead and not self._dry and self._left != 0:
            scheduled = self._feed.schedule(self.step)
            if scheduled is None:
                self._dry = True
                return
            self._pending.append(scheduled)
            if self._left is not None:
                self._left -= 1


def undistributed(dataset: Any) -> Any:
    """Returns what the coordinator reads instead of a dataset that a parameter-server strategy has distributed.

    Args:
        dataset: anything that fit, evaluate and predict take.
    """
    dataset_fn = getattr(dataset, "tfdist_dataset_fn", None)
    if dataset_fn is not None:
        return dataset_fn(tf.distribute.InputContext())
    return getattr(dataset, "tfdist_dataset", dataset)


def step_queue(dataset: Any, *, on_workers: bool, num_workers: int) -> StepQueue:
    """Returns the queue for one pass over a dataset.

    Args:
        dataset: what `per_worker_dataset` returned, or any iterable of batches for the coordinator to read.
        on_workers: which of the two it is.
        num_workers: how many workers there are.
    """
    feed = WorkerFeed(dataset, num_workers) if on_workers else BatchFeed(dataset)
    return StepQueue(feed, num_workers=num_workers)


class _ReportingSlowness:
    """Says every minute that a step is still awaited, so that nothing waits in silence."""

    def __enter__(self) -> None:
        self._done = threading.Event()
        threading.Thread(target=self._report, args=(time.monotonic(), self._done), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._done.set()

    @staticmethod
    def _report(since: float, done: threading.Event) -> None:
        while not done.wait(_REPORT_EVERY_SECONDS):
            get_logger().warning(
                "waiting for a step on the workers for %.0f s; a worker may be slow or lost, and a lost worker's step "
                "is run again once it is back",
                time.monotonic() - since,
            )
