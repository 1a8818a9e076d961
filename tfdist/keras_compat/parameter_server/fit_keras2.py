"""Mends fit and evaluate of Keras 2 on parameter servers, which fail on a finite dataset and on arrays.

In stock Keras 2 a finite dataset ends with an OutOfRange error on the fastest worker, every worker reads all of the
data, arrays need steps_per_epoch, and the progress bar and batch callbacks are refused. The mend gives Keras's training
loop a data handler whose iterator is a queue of scheduled steps, and a train function that returns the results of the
next finished step in that queue.

Source: _ClusterCoordinatorDataHandler in Keras 2's data_adapter.py, _disallow_batch_hooks_in_ps_strategy in its
callbacks.py; upstream issue keras-team/keras#18624.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.parameter_server.feeds import count_worker_tasks, per_worker_dataset, undistributed
from tfdist.keras_compat.parameter_server.metric_ledger import Slot
from tfdist.keras_compat.parameter_server.model import (
    CoordinatedFunction,
    CoordinatedModel,
    refuse_compile_options,
    within,
)
from tfdist.keras_compat.parameter_server.step_queue import StepQueue, step_queue
from tfdist.keras_compat.version import engine_module


def _defect_present() -> bool:
    return "_ClusterCoordinatorDataHandler" in vars(engine_module("data_adapter"))


def _slots(model: Any) -> list[Slot]:
    """Returns the attributes in which the metrics of a model keep their variables.

    A variable that is not an attribute of its metric stays on the parameter server.
    """
    # The container of compiled losses has its metric before the first step, but names it only after that step.
    mean = getattr(model.compiled_loss, "_total_loss_mean", None)
    metrics = [*model.metrics, *([] if mean is None else [mean])]
    return [
        Slot(metric, name)
        for metric in metrics
        for name, value in vars(metric).items()
        if isinstance(value, tf.Variable) or type(value).__name__ == "Tally"
    ]


_models: weakref.WeakKeyDictionary[Any, CoordinatedModel] = weakref.WeakKeyDictionary()


def _on_parameter_servers(model: Any) -> bool:
    return isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)


def _apply() -> None:
    data_adapter: Any = engine_module("data_adapter")
    training: Any = engine_module("training")
    handler_class = _data_handler_class(data_adapter)
    stock_handler = data_adapter.get_data_handler

    def get_data_handler(*args: Any, **kwargs: Any) -> Any:
        coordinated = _models.get(kwargs.get("model"))
        open_now = coordinated is not None and coordinated.is_open
        return (handler_class if open_now else stock_handler)(*args, **kwargs)

    stock_single_batch = data_adapter.single_batch_iterator

    def single_batch_iterator(strategy: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            strategy = types.SimpleNamespace(experimental_distribute_dataset=lambda dataset: dataset)
        return stock_single_batch(strategy, *args, **kwargs)

    data_adapter.get_data_handler = get_data_handler
    data_adapter.single_batch_iterator = single_batch_iterator
    for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
        patch_method(training.Model, name, within(_on_parameter_servers, _on_workers))
    for name in ("predict", "predict_on_batch"):
        patch_method(training.Model, name, _predict)


def _data_handler_class(data_adapter: Any) -> type:
    class CoordinatedDataHandler(data_adapter.DataHandler):
        """Keras's data handler, whose iterator is a StepQueue."""

        def _configure_dataset_and_inferred_steps(
            self, strategy: Any, x: Any, steps_per_epoch: Any, class_weight: Any, distribute: Any
        ) -> None:
            del distribute
            self._num_workers = count_worker_tasks(strategy)
            creator = type(x).__name__ == "DatasetCreator"
            dataset_fn: Any = x if creator else getattr(x, "tfdist_dataset_fn", None)
            self._on_workers = dataset_fn is not None
            if self._on_workers:
                self._dataset = per_worker_dataset(dataset_fn, strategy, class_weight=class_weight)
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
            return step_queue(self._dataset, on_workers=self._on_workers, num_workers=self._num_workers)

        def enumerate_epochs(self) -> Iterator[tuple[int, StepQueue]]:
            with self._truncate_execution_to_epoch():
                queue = self._queue()
                for epoch in range(self._initial_epoch, self._epochs):
                    if self._insufficient_data:
                        break
                    if epoch > self._initial_epoch and self._adapter.should_recreate_iterator():
                        queue = self._queue()
                    # Schedule no steps ahead beyond the end of the epoch.
                    queue.grant(self._inferred_steps)
                    yield epoch, queue
                    self._adapter.on_epoch_end()

        def sync(self) -> None:
            """Does nothing: a step counts only after its result has arrived, so that no step is left to wait for."""

    return CoordinatedDataHandler


def _predict(stock: Callable) -> Callable:
    def predict(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, x, *args, **kwargs)
        strategy = self.distribute_strategy
        flag, strategy._should_use_with_coordinator = strategy._should_use_with_coordinator, True
        coordinated = _models.get(self)
        try:
            # A callback may call predict while fit is running. The predict of Keras 2 runs on the coordinator.
            with coordinated.paused() if coordinated is not None else contextlib.nullcontext():
                return _outside_of_scope(lambda: stock(self, undistributed(x), *args, **kwargs))
        finally:
            strategy._should_use_with_coordinator = flag

    return predict


def _outside_of_scope(function: Callable[[], Any]) -> Any:
    """Calls a function outside of every strategy's scope, even within fit, and returns the result."""
    if not tf.distribute.has_strategy():
        return function()
    # A scope belongs to a thread, and the thread cannot suspend it. A new thread is in no scope.
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


@contextlib.contextmanager
def _on_workers(model: Any) -> Iterator[None]:
    """Makes Keras's loop call functions that run on workers, and switches off Keras's own use of the coordinator."""
    coordinated = _models.setdefault(model, CoordinatedModel(model, _slots))
    if coordinated.is_open:
        yield
        return
    _refuse(model)
    strategy, stock_reset = model.distribute_strategy, model.reset_metrics
    for kind in ("train", "test"):
        if not isinstance(getattr(model, f"{kind}_function"), CoordinatedFunction):
            function = CoordinatedFunction(
                model, f"{kind}_step", coordinated, lambda model: int(model._steps_per_execution.numpy())
            )
            setattr(model, f"{kind}_function", function)

    def reset_metrics() -> None:
        # A Keras 2 metric resets the variables that it has registered, but not the tallies that replace them.
        stock_reset()
        coordinated.ledger().reset()

    with coordinated:
        # Only Keras reads this flag. If it is True, Keras uses its own functions and refuses progress bars and batch
        # callbacks.
        flag, strategy._should_use_with_coordinator = strategy._should_use_with_coordinator, False
        model.__dict__["reset_metrics"] = reset_metrics
        try:
            yield
        finally:
            del model.__dict__["reset_metrics"]
            strategy._should_use_with_coordinator = flag


def _refuse(model: Any) -> None:
    refuse_compile_options(model)
    if model._pss_evaluation_shards:
        raise ValueError(
            f"expected compile(pss_evaluation_shards=0), received {model._pss_evaluation_shards!r}; leave "
            "pss_evaluation_shards out, since without it evaluation reads every record once."
        )


MEND = Mend(
    name="parameter_server_fit_keras2",
    issue="keras-team/keras#18624",
    strategies=("parameter_server",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a finite dataset fails, every worker reads all of the data, and the progress bar and batch callbacks are "
    "refused",
    rows=("arrays", "tf.data, finite", "which callbacks are called, and when"),
)
