"""Mends Keras 3's fit, evaluate and predict, which know nothing of parameter servers (keras-team/keras#18624).

Keras's own loop stays: it is given an epoch iterator whose iterator is a queue of steps under way, and a train
function that takes the next finished step from it. Predicting happens on the coordinator, as in Keras 2.
"""

from __future__ import annotations

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
from tfdist.keras_compat.metric_ledger import MetricLedger


def _defect_present() -> bool:
    from keras.src.backend.tensorflow import trainer

    return "coordinator" not in inspect.getsource(trainer).lower()


class _Coordinated:
    """What a model needs while its steps run on workers.

    Attributes:
        coordinator: the cluster's ClusterCoordinator.
        num_workers: how many workers there are.
        queues: the steps under way.
        depth: how many calls of fit and evaluate are open.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.num_workers = count_workers(strategy)
        self.ledger: MetricLedger | None = None
        self.queues: weakref.WeakSet[StepQueue] = weakref.WeakSet()
        self.depth = 0

    def open_ledger(self, model: Any) -> MetricLedger:
        if self.ledger is None or not self.ledger.covers(model.metrics):
            if self.ledger is not None:
                self.ledger.close()
            self.ledger = MetricLedger(model.metrics)
        self.ledger.open()
        return self.ledger

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            for queue in list(self.queues):
                queue.drain()
            if self.ledger is not None:
                self.ledger.close()


_coordinated: weakref.WeakKeyDictionary[Any, _Coordinated] = weakref.WeakKeyDictionary()


def _on_parameter_servers(model: Any) -> bool:
    return isinstance(model._distribute_strategy, tf.distribute.ParameterServerStrategy)


def _coordinated_of(model: Any) -> _Coordinated:
    if model not in _coordinated:
        _coordinated[model] = _Coordinated(model._distribute_strategy)
    return _coordinated[model]


def _refuse(model: Any) -> None:
    for option in ("run_eagerly", "jit_compile"):
        if getattr(model, option):
            raise ValueError(
                f"expected compile({option}=False) for the strategy parameter_server, received True; "
                "its steps run as graphs on the workers and read variables of the ps tasks, leave it out."
            )


class _CoordinatedFunction:
    """The train or test function of a model: runs steps on workers, returns the logs up to the next finished one."""

    def __init__(self, model: Any, step_name: str) -> None:
        # The model holds this function: a reference back would keep both alive.
        self._model: Callable[[], Any] = weakref.ref(model)
        self._step_name = step_name
        self._log_names: list[str] = []
        self._step = StepFunction(self._run, _coordinated_of(model).coordinator)

    def _run(self, batch: Any) -> list[tf.Tensor]:
        """One step in replica context on a worker: what it adds to the metrics, and logs of the user's own."""
        model = self._model()
        ledger = _coordinated_of(model).open_ledger(model)
        with ledger.fresh() as tallies:
            logs = getattr(model, self._step_name)(batch)
        if not isinstance(logs, dict):
            raise ValueError(
                f"expected {self._step_name} to return a dict of logs on the strategy parameter_server, "
                f"received {type(logs).__name__}; return a dict."
            )
        self._log_names = list(logs)
        own = [tf.convert_to_tensor(logs[name]) for name in self._own_names(model)]
        return [*ledger.pack(tallies), *own]

    def _own_names(self, model: Any) -> list[str]:
        metrics = model.get_metrics_result()
        return [name for name in self._log_names if name not in metrics]

    def __call__(self, iterator: Any) -> dict[str, Any]:
        model = self._model()
        state = _coordinated_of(model)
        ledger = state.open_ledger(model)
        if not isinstance(iterator, StepQueue):
            iterator = StepQueue(BatchFeed(iterator), num_workers=state.num_workers, limit=None)
        iterator.step = self._step
        state.queues.add(iterator)
        outputs: list[Any] = []
        for step in range(model.steps_per_execution):
            try:
                outputs = next(iterator)
            except StopIteration:
                if step == 0:
                    raise
                break
            ledger.add(outputs)
        metrics = model.get_metrics_result()
        own_names = self._own_names(model)
        own = dict(zip(own_names, outputs[len(outputs) - len(own_names) :], strict=True))
        return {name: own[name] if name in own else metrics[name] for name in self._log_names}


def _apply() -> None:
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.epoch_iterator import EpochIterator

    class WorkerDatasetAdapter(DataAdapter):
        """Takes what distribute_datasets_from_function returned; its size is known to the workers alone."""

        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def get_tf_dataset(self) -> Any:
            return self.dataset

        @property
        def num_batches(self) -> None:
            return None

        batch_size = has_partial_batch = partial_batch_size = num_batches

    class CoordinatedEpochIterator(EpochIterator):
        """Keras's epoch iterator, whose iterator is a StepQueue."""

        def __init__(self, *, x: Any, class_weight: Any = None, distribute_strategy: Any, **kwargs: Any) -> None:
            state = _Coordinated(distribute_strategy)
            self._num_workers = state.num_workers
            dataset_fn: Any = getattr(x, "tfdist_dataset_fn", None)
            self._on_workers = dataset_fn is not None
            if self._on_workers:
                if class_weight is not None:
                    raise ValueError(
                        "expected no class_weight with distribute_datasets_from_function, received one; "
                        "let the dataset function yield sample weights."
                    )
                x = WorkerDatasetAdapter(per_worker_dataset(dataset_fn, state.coordinator, state.num_workers))
            super().__init__(x=getattr(x, "tfdist_dataset", x), class_weight=class_weight, **kwargs)
            self._distributed_dataset = self.data_adapter.get_tf_dataset()

        def _get_iterator(self) -> Any:
            dataset = self._distributed_dataset
            feed = WorkerFeed(dataset, self._num_workers) if self._on_workers else BatchFeed(dataset)
            return StepQueue(feed, num_workers=self._num_workers, limit=None)

        def _enumerate_iterator(self) -> Iterator:
            for begin_step, end_step, queue in super()._enumerate_iterator():
                if begin_step == 0:
                    # Steps are scheduled ahead, but not beyond the end of the epoch.
                    queue.grant(self.steps_per_epoch)
                yield begin_step, end_step, queue

        def __next__(self) -> Any:
            return next(self._epoch_iterator)

    stock_iterator = trainer.TFEpochIterator

    def epoch_iterator(*args: Any, distribute_strategy: Any = None, **kwargs: Any) -> Any:
        on_parameter_servers = isinstance(distribute_strategy, tf.distribute.ParameterServerStrategy)
        kind = CoordinatedEpochIterator if on_parameter_servers else stock_iterator
        return kind(*args, distribute_strategy=distribute_strategy, **kwargs)

    trainer.TFEpochIterator = epoch_iterator
    model_class = trainer.TensorFlowTrainer
    for step_name in ("train", "test"):
        _patch_make_function(model_class, f"make_{step_name}_function", f"{step_name}_function", f"{step_name}_step")
    for name in ("fit", "evaluate"):
        _patch_loop(model_class, name)
    for name in ("predict", "predict_on_batch"):
        _patch_predict(model_class, name)


def _patch_make_function(model_class: Any, name: str, attribute: str, step_name: str) -> None:
    stock = getattr(model_class, name)

    def make_function(self: Any, force: bool = False) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, force)
        _refuse(self)
        _coordinated_of(self).open_ledger(self)
        if getattr(self, attribute) is None or force:
            setattr(self, attribute, _CoordinatedFunction(self, step_name))
        return getattr(self, attribute)

    setattr(model_class, name, make_function)


def _patch_loop(model_class: Any, name: str) -> None:
    stock: Callable = getattr(model_class, name)

    def loop(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, *args, **kwargs)
        with _coordinated_of(self):
            return stock(self, *args, **kwargs)

    loop.__name__, loop.__doc__ = name, stock.__doc__
    loop.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    setattr(model_class, name, loop)


def _patch_predict(model_class: Any, name: str) -> None:
    stock: Callable = getattr(model_class, name)

    def predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, *args, **kwargs)
        if tf.distribute.has_strategy():
            raise ValueError(
                f"expected {name}() outside of strategy.scope() on the strategy parameter_server, where it runs on "
                "the coordinator, received a call inside; move it out of the scope."
            )
        strategy, self._distribute_strategy = self._distribute_strategy, None
        try:
            return stock(self, *args, **kwargs)
        finally:
            self._distribute_strategy = strategy

    predict.__name__, predict.__doc__ = name, stock.__doc__
    predict.__signature__ = inspect.signature(stock)  # type: ignore[attr-defined]
    setattr(model_class, name, predict)


MEND = Mend(
    name="parameter_server_fit_keras3",
    issue="keras-team/keras#18624",
    strategies=("parameter_server",),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
