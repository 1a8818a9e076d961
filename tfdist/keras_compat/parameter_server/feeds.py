"""Feeds: the sources of batches for the steps on a parameter-server cluster.

There are two feeds. BatchFeed reads a plain dataset or arrays on the coordinator and sends each batch with a step,
so that each batch goes to exactly one worker. WorkerFeed lets every worker build and read its own dataset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.parameter_server.step_function import StepFunction

_EMPTY_POLL_SECONDS = 0.005


def count_worker_tasks(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of worker tasks in the cluster of a parameter-server strategy."""
    # The public property `cluster_resolver` is None on this strategy.
    return strategy._cluster_resolver.cluster_spec().num_tasks("worker")


class BatchFeed:
    """Feeds each batch of a dataset to one worker.

    Args:
        dataset: any iterable of batches; the coordinator reads it.
    """

    def __init__(self, dataset: Any) -> None:
        self._batches: Iterator = iter(dataset)

    def schedule(self, step: StepFunction) -> tf.distribute.experimental.coordinator.RemoteValue | None:
        """Schedules the step on the next batch and returns the step's future result; None if no batch is left."""
        batch = next(self._batches, None)
        if batch is None:
            return None
        return step.coordinator.schedule(step.on_batch, args=(batch,))

    def outputs_of(self, fetched: Any) -> Any:
        """Returns the outputs of a step, given its fetched result."""
        return fetched


class WorkerFeed:
    """Lets every worker read its own dataset.

    Args:
        dataset: from per_worker_dataset.
        num_workers: the number of worker tasks.
    """

    def __init__(self, dataset: Any, num_workers: int) -> None:
        self._iterator = iter(dataset)
        self._num_workers = num_workers
        self._exhausted: set[int] = set()

    def schedule(self, step: StepFunction) -> tf.distribute.experimental.coordinator.RemoteValue | None:
        """Schedules the step on any free worker and returns its future result; None if no worker has data left."""
        if len(self._exhausted) == self._num_workers:
            return None
        return step.coordinator.schedule(step.on_iterator, args=(self._iterator,))

    def outputs_of(self, fetched: Any) -> Any:
        """Returns the outputs of a step, given its fetched result; None if the worker had no data left."""
        has_data, worker, outputs = fetched
        if has_data:
            return outputs
        self._exhausted.add(int(worker))
        # A step without data ends at once. Without a pause, the worker would be given many steps while others compute.
        time.sleep(_EMPTY_POLL_SECONDS)
        return None


def per_worker_dataset(dataset_fn: Callable, strategy: tf.distribute.Strategy, *, class_weight: Any = None) -> Any:
    """Returns a dataset of which every worker builds its own copy.

    The dataset is sharded by worker only if `dataset_fn` shards it.

    Args:
        dataset_fn: maps a tf.distribute.InputContext to a tf.data.Dataset of batches. The context's input_pipeline_id
            is a scalar int64 tensor, since the function is traced once and runs on every worker.
        strategy: a parameter-server strategy.
        class_weight: the class_weight that fit received.

    Raises:
        ValueError: if there are class weights, because the coordinator cannot apply them to the data of the workers.
    """
    if class_weight is not None:
        raise ValueError(
            "expected no class_weight with a dataset function, received class weights; "
            "let the dataset function yield sample weights."
        )
    num_workers, num_replicas = count_worker_tasks(strategy), strategy.num_replicas_in_sync

    def build() -> tf.data.Dataset:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return dataset_fn(
            tf.distribute.InputContext(
                num_input_pipelines=num_workers, input_pipeline_id=worker, num_replicas_in_sync=num_replicas
            )
        )

    # A strategy has one ClusterCoordinator: the constructor returns it if it exists.
    return tf.distribute.coordinator.ClusterCoordinator(strategy).create_per_worker_dataset(build)


def undistributed(dataset: Any) -> Any:
    """Returns the original of a dataset that a parameter-server strategy has distributed; the coordinator can read it.

    Args:
        dataset: any data that fit, evaluate and predict take. Data that is not distributed is returned unchanged.
    """
    dataset_fn = getattr(dataset, "tfdist_dataset_fn", None)
    if dataset_fn is not None:
        return dataset_fn(tf.distribute.InputContext())
    return getattr(dataset, "tfdist_dataset", dataset)
