"""CoordinatedModel and CoordinatedFunction: run a Keras model's steps on the workers of a parameter-server cluster."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.parameter_server.feeds import BatchFeed, count_worker_tasks
from tfdist.keras_compat.parameter_server.metric_ledger import MetricLedger, Slot
from tfdist.keras_compat.parameter_server.step_function import StepFunction
from tfdist.keras_compat.parameter_server.step_queue import StepQueue
from tfdist.keras_compat.reached import reached
from tfdist.keras_compat.version import keras_in_use

# A result of a metric is a few operations away from the totals of the metric.
_OPERATIONS = 200


class CoordinatedModel:
    """Context in which fit and evaluate of a model run; holds the model's coordinator, queues and metric ledger.

    The end of the outermost context waits for the scheduled steps, and writes the metrics' values back to the ps tasks.

    Args:
        model: a Keras model made under a parameter-server strategy.
        slots: returns the slots in which the metrics of a given model keep their variables.

    Attributes:
        coordinator: the cluster's ClusterCoordinator.
        num_workers: the number of worker tasks.
    """

    def __init__(self, model: Any, slots: Callable[[Any], Sequence[Slot]]) -> None:
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(model.distribute_strategy)
        self.num_workers = count_worker_tasks(model.distribute_strategy)
        self._model: Callable[[], Any] = weakref.ref(model)
        self._slots = slots
        self._ledger = MetricLedger([])
        self._queues: weakref.WeakSet[StepQueue] = weakref.WeakSet()
        self._depth = 0

    @property
    def is_open(self) -> bool:
        """Whether fit or evaluate is running."""
        return self._depth > 0

    def ledger(self) -> MetricLedger:
        """Returns the ledger of the model's present metrics, opened."""
        slots = self._slots(self._model())
        if not self._ledger.covers(slots):
            self._ledger.close()
            self._ledger = MetricLedger(slots)
        self._ledger.open()
        return self._ledger

    def queue_of(self, iterator: Any, step: StepFunction) -> StepQueue:
        """Returns a queue that runs a step on the batches of an iterator.

        Args:
            iterator: an iterator over batches, or a StepQueue. A StepQueue is returned itself.
            step: the step to run.
        """
        if not isinstance(iterator, StepQueue):
            iterator = StepQueue(BatchFeed(iterator), num_workers=self.num_workers)
        iterator.step = step
        self._queues.add(iterator)
        return iterator

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        errors = [queue.drain() for queue in list(self._queues)]
        self._queues.clear()
        self._ledger.close()
        for error in errors:
            # If training stops while a step is running, an error of that step is reported only here.
            if error is not None and kind is None:
                raise error

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Makes `is_open` False within the context."""
        depth, self._depth = self._depth, 0
        try:
            yield
        finally:
            self._depth = depth


class CoordinatedFunction:
    """The train or test function of a model: runs steps on workers and returns the logs of the steps finished so far.

    Args:
        model: the Keras model.
        step_name: "train_step" or "test_step".
        coordinated: the model's CoordinatedModel.
        steps_per_call: returns the number of steps of one call, given the model.
    """

    def __init__(
        self, model: Any, step_name: str, coordinated: CoordinatedModel, steps_per_call: Callable[[Any], int]
    ) -> None:
        # The model refers to this function; a strong reference to the model would keep both alive.
        self._model: Callable[[], Any] = weakref.ref(model)
        self._step_name = step_name
        self._coordinated = coordinated
        self._steps_per_call = steps_per_call
        self._log_names: list[str] = []
        self._own_names: list[str] = []
        self._step = StepFunction(self._run, coordinated.coordinator)

    def _run(self, batch: Any) -> list[tf.Tensor]:
        """Runs one step in replica context on a worker; returns the additions to the metrics and the user's logs."""
        model = self._model()
        ledger = self._coordinated.ledger()
        with ledger.fresh() as tallies:
            logs = getattr(model, self._step_name)(batch)
        if not isinstance(logs, dict):
            raise ValueError(
                f"expected {self._step_name} to return a dict of logs on the strategy parameter_server, "
                f"received {type(logs).__name__}; return a dict."
            )
        results = model.get_metrics_result()
        # If the names are equal, Keras 3 reports the metrics, as in its _get_metrics_result_or_logs.
        if keras_in_use().is_keras3 and set(results) == set(logs):
            own = {}
        else:
            totals = [tally.tensor for tally in tallies]
            own = {name: value for name, value in logs.items() if name not in results or not _reads(value, totals)}
        self._log_names, self._own_names = list(logs), list(own)
        return [*ledger.pack(tallies), *map(tf.convert_to_tensor, own.values())]

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Runs the steps of one call and returns the logs.

        Raises:
            StopIteration: if there is no data left.
        """
        model = self._model()
        queue = self._coordinated.queue_of(iterator, self._step)
        outputs: list[Any] = []
        for step in range(self._steps_per_call(model)):
            try:
                outputs = next(queue)
            except StopIteration:
                if step == 0:
                    raise
                break
            self._coordinated.ledger().add(outputs)
            counter = getattr(model, f"_{self._step_name.removesuffix('_step')}_counter", None)
            if counter is not None:
                # Keras 2's own train and test functions advance this counter, which TensorBoard reads.
                counter.assign_add(1)
        metrics = model.get_metrics_result()
        own = dict(zip(self._own_names, outputs[len(outputs) - len(self._own_names) :], strict=True))
        return {name: own[name] if name in own else metrics[name] for name in self._log_names}


def _reads(value: Any, totals: Sequence[tf.Tensor]) -> bool:
    """Returns whether a log is computed from a total of a metric, and hence is a result of this metric."""
    sought = {id(total) for total in totals}
    operands = itertools.islice(reached(tf.convert_to_tensor(value)), _OPERATIONS)
    return any(id(one) in sought for one in operands)


def refuse_compile_options(model: Any) -> None:
    """Raises ValueError for options of compile that steps on workers do not support."""
    for option in ("run_eagerly", "jit_compile"):
        if getattr(model, option):
            raise ValueError(
                f"expected compile({option}=False) for the strategy parameter_server, received True; leave {option} "
                "out, since steps run as graphs on the workers and read variables of the ps tasks."
            )


def within(applies: Callable[[Any], bool], context: Callable[[Any], Any]) -> Callable[[Callable], Callable]:
    """Returns a function that wraps a method of a model so that the method runs within a context.

    Args:
        applies: returns whether a given model needs the context; for other models the method is unchanged.
        context: returns the context manager for a given model.
    """

    def replace(stock: Callable) -> Callable:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not applies(self):
                return stock(self, *args, **kwargs)
            with context(self):
                return stock(self, *args, **kwargs)

        return method

    return replace
