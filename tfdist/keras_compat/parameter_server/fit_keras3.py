"""Mends fit, evaluate and predict of Keras 3, which do not support parameter servers.

In stock Keras 3 all three methods fail under ParameterServerStrategy. The mend gives Keras's training loop an epoch
iterator whose iterator is a queue of scheduled steps, and a train function that returns the results of the next
finished step in that queue. Predictions are computed on the coordinator, as in Keras 2.

Source: upstream issue keras-team/keras#18624.
"""

from __future__ import annotations

import inspect
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
from tfdist.keras_compat.parameter_server.optimizer_options import refuse_optimizer_options
from tfdist.keras_compat.parameter_server.step_queue import step_queue


def _defect_present() -> bool:
    from keras.src.backend.tensorflow import trainer

    return "coordinator" not in inspect.getsource(trainer).lower()


def _slots(model: Any) -> list[Slot]:
    # Only variables that hold sums can be added up over steps; other variables stay on the parameter server.
    return [Slot(v, "_value") for metric in model.metrics for v in metric.variables if v.aggregation == "sum"]


_models: weakref.WeakKeyDictionary[Any, CoordinatedModel] = weakref.WeakKeyDictionary()


def _coordinated(model: Any) -> CoordinatedModel:
    if model not in _models:
        _models[model] = CoordinatedModel(model, _slots)
    return _models[model]


def _on_parameter_servers(model: Any) -> bool:
    return isinstance(model._distribute_strategy, tf.distribute.ParameterServerStrategy)


def _apply() -> None:
    from keras.src.backend.tensorflow import trainer

    coordinated_epoch_iterator = _epoch_iterator_class()
    stock_iterator = trainer.TFEpochIterator

    def epoch_iterator(*args: Any, distribute_strategy: Any = None, **kwargs: Any) -> Any:
        on_parameter_servers = isinstance(distribute_strategy, tf.distribute.ParameterServerStrategy)
        kind = coordinated_epoch_iterator if on_parameter_servers else stock_iterator
        return kind(*args, distribute_strategy=distribute_strategy, **kwargs)

    trainer.TFEpochIterator = epoch_iterator
    model_class = trainer.TensorFlowTrainer
    patch_method(model_class, "make_train_function", lambda stock: _make_function(stock, "train"))
    patch_method(model_class, "make_test_function", lambda stock: _make_function(stock, "test"))
    for name in ("fit", "evaluate", "train_on_batch", "test_on_batch"):
        patch_method(model_class, name, within(_on_parameter_servers, _coordinated))
    for name in ("predict", "predict_on_batch"):
        patch_method(model_class, name, _predict)


def _epoch_iterator_class() -> type:
    from keras.src.trainers.data_adapters.data_adapter import DataAdapter
    from keras.src.trainers.epoch_iterator import EpochIterator

    class WorkerDatasetAdapter(DataAdapter):
        """Adapts a dataset that every worker builds itself; the coordinator does not know its size."""

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
            self._num_workers = count_worker_tasks(distribute_strategy)
            dataset_fn: Any = getattr(x, "tfdist_dataset_fn", None)
            self._on_workers = dataset_fn is not None
            if self._on_workers:
                dataset = per_worker_dataset(dataset_fn, distribute_strategy, class_weight=class_weight)
                x = WorkerDatasetAdapter(dataset)
            super().__init__(x=getattr(x, "tfdist_dataset", x), class_weight=class_weight, **kwargs)
            self._distributed_dataset = self.data_adapter.get_tf_dataset()

        def _get_iterator(self) -> Any:
            return step_queue(self._distributed_dataset, on_workers=self._on_workers, num_workers=self._num_workers)

        def _enumerate_iterator(self) -> Iterator:
            # Since Keras 3.11 the last step stands beside the first.
            for first_step, *last_step, queue in super()._enumerate_iterator():
                if first_step == 0:
                    # Schedule no steps ahead beyond the end of the epoch.
                    queue.grant(self.steps_per_epoch)
                yield first_step, *last_step, queue

        def __next__(self) -> Any:
            return next(self._epoch_iterator)

    return CoordinatedEpochIterator


def _make_function(stock: Callable, kind: str) -> Callable:
    attribute, step_name = f"{kind}_function", f"{kind}_step"

    def make_function(self: Any, force: bool = False) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, force)
        refuse_compile_options(self)
        refuse_optimizer_options(self.optimizer)
        _coordinated(self).ledger()
        if getattr(self, attribute) is None or force:
            function = CoordinatedFunction(
                self, step_name, _coordinated(self), lambda model: int(model.steps_per_execution)
            )
            setattr(self, attribute, function)
        return getattr(self, attribute)

    return make_function


def _predict(stock: Callable) -> Callable:
    def predict(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not _on_parameter_servers(self):
            return stock(self, x, *args, **kwargs)
        if tf.distribute.has_strategy():
            raise ValueError(
                f"expected {stock.__name__}() to be called outside of strategy.scope() on the strategy "
                "parameter_server, received a call inside of it; move the call out of the scope."
            )
        strategy, self._distribute_strategy = self._distribute_strategy, None
        try:
            return stock(self, undistributed(x), *args, **kwargs)
        finally:
            self._distribute_strategy = strategy

    return predict


MEND = Mend(
    name="parameter_server_fit_keras3",
    issue="keras-team/keras#18624",
    strategies=("parameter_server",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`fit`, `evaluate` and `predict` do not support parameter servers",
    rows=("arrays", "tf.data, finite", "evaluate a dataset, uneven", "predict a dataset, complete and in order"),
)
