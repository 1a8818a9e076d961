"""Mends fit and evaluate of Keras 2 (tf_keras) on parameter servers.

There a finite dataset ends in an OutOfRange error of whichever worker is faster, every worker reads all of the data,
arrays need steps_per_epoch, and progress bar and batch callbacks are refused (keras-team/tf-keras, training.py). Here
Keras's own loop is given a data handler whose iterator is a queue of steps under way: each batch is seen once.

Metrics are TensorFlow variables on the ps tasks, added to atomically, and exact once no step is under way. Between,
total and count may be read apart, so that logs of single batches carry no metrics.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.coordinator_steps import (
    BatchFeed,
    StepFunction,
    StepQueue,
    WorkerFeed,
    count_workers,
    per_worker_dataset,
)
from tfdist.keras_compat.mends import Mend
from tfdist.keras_compat.which import engine_module


def _defect_present() -> bool:
    return "_ClusterCoordinatorDataHandler" in vars(engine_module("data_adapter"))


def _on_parameter_servers(model: Any) -> bool:
    return isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)


class _CoordinatedFunction:
    """The train or test function of a model: runs steps on workers and awaits the next finished one."""

    def __init__(self, model: Any, step_name: str, coordinator: Any) -> None:
        self._model: Callable[[], Any] = weakref.ref(model)
        self._step_name = step_name
        self._log_names: list[str] = []
        self._step = StepFunction(self._run, coordinator)
        self.queues: weakref.WeakSet[StepQueue] = weakref.WeakSet()

    def _run(self, batch: Any) -> list[tf.Tensor]:
        model = self._model()
        logs = getattr(model, self._step_name)(batch)
        counter = model._train_counter if self._step_name == "train_step" else model._test_counter
        with tf.control_dependencies([tensor for tensor in tf.nest.flatten(logs) if tf.is_tensor(tensor)]):
            counter.assign_add(1)
        names = {metric.name for metric in model.metrics}
        self._log_names = [name for name in logs if name not in names]
        # One value at least, so that there is something to wait for.
        return [tf.convert_to_tensor(logs[name]) for name in self._log_names] or [tf.zeros([], tf.int32)]

    def __call__(self, queue: StepQueue) -> dict[str, Any]:
        queue.step = self._step
        self.queues.add(queue)
        model = self._model()
        outputs: list[Any] = []
        for step in range(int(model._steps_per_execution.numpy())):
            try:
                outputs = next(queue)
            except StopIteration:
                if step == 0:
                    raise
                break
        return dict(zip(self._log_names, outputs, strict=False))

    def drain(self) -> None:
        for queue in list(self.queues):
            queue.drain()


def _apply() -> None:
    training: Any = engine_module("training")
    data_adapter: Any = engine_module("data_adapter")

    class CoordinatedDataHandler(data_adapter.DataHandler):
        """Keras's data handler, whose iterator is a StepQueue."""

        def _configure_dataset_and_inferred_steps(
            self, strategy: Any, x: Any, steps_per_epoch: Any, class_weight: Any, distribute: Any
        ) -> None:
            del distribute
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            self._num_workers = count_workers(strategy)
            creator = type(x).__name__ == "DatasetCreator"
            dataset_fn: Any = x if creator else getattr(x, "tfdist_dataset_fn", None)
            self._on_workers = dataset_fn is not None
            if self._on_workers:
                if class_weight:
                    raise ValueError(
                        "expected no class_weight with a dataset function, received one; "
                        "let the dataset function yield sample weights."
                    )
                self._dataset = per_worker_dataset(dataset_fn, self._coordinator, self._num_workers)
                self._inferred_steps = None if steps_per_epoch == -1 else steps_per_epoch
                return
            dataset = getattr(x, "tfdist_dataset", None)
            dataset = self._adapter.get_dataset() if dataset is None else dataset
            if class_weight:
                dataset = dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
            self._inferred_steps = self._infer_steps(steps_per_epoch, dataset)
            self._dataset = dataset
            self._validate_data_handler()

        def _queue(self) -> StepQueue:
            dataset = self._dataset
            feed = WorkerFeed(dataset, self._num_workers) if self._on_workers else BatchFeed(dataset)
            return StepQueue(feed, num_workers=self._num_workers, limit=None)

        def enumerate_epochs(self) -> Iterator[tuple[int, StepQueue]]:
            with self._truncate_execution_to_epoch():
                queue = self._queue()
                for epoch in range(self._initial_epoch, self._epochs):
                    if self._insufficient_data:
                        break
                    if epoch > self._initial_epoch and self._adapter.should_recreate_iterator():
                        queue = self._queue()
                    # Steps are scheduled ahead, but not beyond the end of the epoch.
                    queue.grant(self._inferred_steps)
                    yield epoch, queue
                    self._adapter.on_epoch_end()

        def sync(self) -> None:
            """Nothing to wait for: a step counts once its result has arrived."""

    stock_handler = data_adapter.get_data_handler

    def get_data_handler(*args: Any, **kwargs: Any) -> Any:
        model = kwargs.get("model")
        if model is not None and _on_parameter_servers(model) and model in _open:
            return CoordinatedDataHandler(*args, **kwargs)
        return stock_handler(*args, **kwargs)

    data_adapter.get_data_handler = get_data_handler
    for name in ("fit", "evaluate"):
        _patch_loop(training.Model, name)


_open: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def _coordinated(model: Any) -> Iterator[None]:
    """Gives Keras's loop functions that run on workers, and keeps it from its own handling of coordinators."""
    if model in _open:
        yield
        return
    if model.run_eagerly:
        raise ValueError(
            "expected compile(run_eagerly=False) for the strategy parameter_server, received True; "
            "its steps run as graphs on the workers, leave it out."
        )
    if model._pss_evaluation_shards:
        raise ValueError(
            "expected compile(pss_evaluation_shards=0), received another value; evaluation sees every record "
            "once as it is, leave it out."
        )
    strategy = model.distribute_strategy
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    functions = {name: _function_of(model, name, coordinator) for name in ("train", "test")}
    _open.add(model)
    # Only Keras reads it: to refuse progress bars and batch callbacks, and to make functions of its own.
    strategy._should_use_with_coordinator = False

    def metrics_once_exact(logs: Any) -> dict[str, Any]:
        """Metrics read while no step is under way, and what else the last step returned."""
        for function in functions.values():
            function.drain()
        exact = {name: value.numpy() for name, value in model.get_metrics_result().items()}
        exact = {name: value.item() if value.ndim == 0 else value for name, value in exact.items()}
        return {**exact, **(logs or {})}

    model.__dict__["_validate_and_get_metrics_result"] = metrics_once_exact
    try:
        yield
    finally:
        del model.__dict__["_validate_and_get_metrics_result"]
        for function in functions.values():
            function.drain()
        strategy._should_use_with_coordinator = True
        _open.discard(model)


def _function_of(model: Any, name: str, coordinator: Any) -> _CoordinatedFunction:
    attribute = f"{name}_function"
    if not isinstance(getattr(model, attribute), _CoordinatedFunction):
        setattr(model, attribute, _CoordinatedFunction(model, f"{name}_step", coordinator))
    return getattr(model, attribute)


def _patch_loop(model_class: Any, name: str) -> None:
    stock: Callable = getattr(model_class, name)

    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, *args, **kwargs)
        with _coordinated(self):
            return stock(self, *args, **kwargs)

    loop.__name__, loop.__doc__ = name, stock.__doc__
    loop.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    setattr(model_class, name, loop)


MEND = Mend(
    name="parameter_server_fit_keras2",
    issue="keras-team/keras#18624",
    strategies=("parameter_server",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
)
