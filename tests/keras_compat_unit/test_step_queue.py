"""Feeds and the queue of steps on a parameter-server cluster, with a fake coordinator in place of the workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat import keras_in_use
from tfdist.keras_compat.parameter_server.feeds import BatchFeed, WorkerFeed, per_worker_dataset, undistributed
from tfdist.keras_compat.parameter_server.step_function import StepFunction
from tfdist.keras_compat.parameter_server.step_queue import StepQueue


@dataclasses.dataclass
class Scheduled:
    """A step that runs when its result is fetched."""

    function: Callable
    args: tuple

    def fetch(self) -> Any:
        return self.function(*self.args)


class Coordinator:
    """Records the steps that are scheduled."""

    def __init__(self) -> None:
        self.scheduled: list[Scheduled] = []
        self.joined = 0
        self.failure: Exception | None = None

    def schedule(self, function: Callable, args: tuple) -> Scheduled:
        self.scheduled.append(Scheduled(function, args))
        return self.scheduled[-1]

    def join(self) -> None:
        self.joined += 1
        if self.failure is not None:
            raise self.failure


def doubling(coordinator: Coordinator, **functions: Callable) -> Any:
    functions = {"on_batch": lambda batch: batch * 2, "on_iterator": None, **functions}
    return SimpleNamespace(coordinator=coordinator, **functions)


def queue_of(feed: Any, step: Any, num_workers: int = 1) -> StepQueue:
    queue = StepQueue(feed, num_workers=num_workers)
    queue.step = step
    return queue


def test_results_come_in_the_order_of_the_batches():
    coordinator = Coordinator()
    assert list(queue_of(BatchFeed(range(1, 6)), doubling(coordinator))) == [2, 4, 6, 8, 10]
    assert len(coordinator.scheduled) == 5


def test_two_steps_for_each_worker_are_scheduled_ahead():
    coordinator = Coordinator()
    queue = queue_of(BatchFeed(range(100)), doubling(coordinator), num_workers=3)
    next(queue)
    assert len(coordinator.scheduled) == 6
    next(queue)
    assert len(coordinator.scheduled) == 7


def test_only_granted_steps_are_scheduled():
    coordinator = Coordinator()
    queue = queue_of(BatchFeed(range(1, 100)), doubling(coordinator), num_workers=2)
    queue.grant(3)
    assert list(queue) == [2, 4, 6]
    assert len(coordinator.scheduled) == 3
    queue.grant(2)
    assert list(queue) == [8, 10]


def test_a_queue_without_a_step_function_raises():
    with pytest.raises(RuntimeError, match=r"expected StepQueue.step to be set"):
        next(StepQueue(BatchFeed([1]), num_workers=1))


def test_steps_of_workers_without_data_do_not_count():
    # Worker 0 has one batch and worker 1 has three; the queue does not choose the worker that runs a step.
    answers = iter([(True, 0, "a"), (False, 0, None), (True, 1, "b"), (False, 0, None), (True, 1, "c"), (True, 1, "d")])
    coordinator = Coordinator()
    step = doubling(coordinator, on_iterator=lambda iterator: next(answers, (False, 1, None)))
    queue = queue_of(WorkerFeed([None], num_workers=2), step, num_workers=2)
    queue.grant(3)
    assert list(queue) == ["a", "b", "c"]
    queue.grant(None)
    assert list(queue) == ["d"]


def test_the_error_of_a_step_is_raised_after_the_other_steps_have_ended():
    def fail(batch):
        raise ZeroDivisionError("of the step")

    coordinator = Coordinator()
    with pytest.raises(ZeroDivisionError, match="of the step"):
        next(queue_of(BatchFeed([1, 2]), doubling(coordinator, on_batch=fail)))
    assert coordinator.joined == 1


def test_a_step_that_was_cancelled_raises_the_error_that_cancelled_it():
    def cancelled(batch):
        raise tf.errors.CancelledError(None, None, "cancelled")

    coordinator = Coordinator()
    coordinator.failure = ZeroDivisionError("the cause")
    with pytest.raises(ZeroDivisionError, match="the cause"):
        next(queue_of(BatchFeed([1, 2]), doubling(coordinator, on_batch=cancelled)))


def test_class_weights_are_refused_with_a_dataset_function():
    with pytest.raises(ValueError, match="expected no class_weight with a dataset function, received class weights;"):
        per_worker_dataset(lambda context: None, tf.distribute.get_strategy(), class_weight={0: 1.0})


def test_the_coordinator_reads_a_distributed_dataset_undistributed():
    plain = tf.data.Dataset.range(3)
    assert undistributed(plain) is plain
    assert undistributed(SimpleNamespace(tfdist_dataset=plain)) is plain
    pipelines = undistributed(SimpleNamespace(tfdist_dataset_fn=lambda context: context.num_input_pipelines))
    assert pipelines == 1


@pytest.fixture
def step_function() -> Callable[[Callable], StepFunction]:
    coordinator = SimpleNamespace(strategy=tf.distribute.OneDeviceStrategy("CPU:0"))
    return lambda step: StepFunction(step, coordinator)


def test_a_step_sees_batches_without_a_static_size(step_function):
    shapes = []

    def step(batch):
        shapes.append(batch.shape.as_list())
        return [tf.reduce_sum(batch)]

    function = step_function(step)
    assert [float(function.on_batch(tf.ones([rows, 3]))[0]) for rows in (2, 5)] == [6.0, 15.0]
    assert {tuple(shape) for shape in shapes} == {(None, 3)}


def test_a_layer_is_traced_as_keras_traces_it(step_function):
    class Branching(tf.keras.layers.Layer):
        def call(self, inputs):
            return inputs * 2.0 if tf.reduce_sum(inputs) > 0.0 else inputs

    layer = Branching()
    function = step_function(lambda batch: [layer(batch)])
    if keras_in_use().is_keras3:
        # Keras 3 does not convert the code of layers.
        with pytest.raises(tf.errors.OperatorNotAllowedInGraphError):
            function.on_batch(tf.ones([2, 3]))
        return
    np.testing.assert_array_equal(function.on_batch(tf.ones([2, 3]))[0], np.full([2, 3], 2.0))
    np.testing.assert_array_equal(function.on_batch(-tf.ones([2, 3]))[0], np.full([2, 3], -1.0))
