"""MetricResults: which logs of a step are results of metrics, and results of all replicas within a step."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist.allreduce import sum_gradients
from tfdist.keras_compat.losses.global_batch import temporarily
from tfdist.keras_compat.reached import reached
from tfdist.keras_compat.steps.logs_of_replicas import flat_logs

# What is computed from a result of a metric is a few operations away from the variables of the metric.
_OPERATIONS = 200


class MetricResults:
    """Remembers what the metrics of a model return while a step runs on the replicas.

    A log that is such a result is computed again from the sums of the metric's variables, after the step. What the step
    computes from a result, such as its square root, cannot be: then `sum` makes the metrics return the results of all
    replicas within the step.

    Args:
        model: the Keras model.
        are_summed: whether the metrics return the results of all replicas within the step.
    """

    def __init__(self, model: Any, *, are_summed: bool) -> None:
        self._model = model
        self._are_summed = self._sum_next = are_summed
        self._has_changed = False
        self._local = threading.local()
        # By the id of a result: the result, which keeps the id in use, its metric and its name.
        self._known: dict[int, tuple[Any, Any, str]] = {}

    def sum(self) -> None:
        """From the next trace on, the metrics return the results of all replicas within the step."""
        self._has_changed |= not self._sum_next
        self._sum_next = True

    def takes_change(self) -> bool:
        """Returns whether `sum` was called since the last call, so that the step must be traced again."""
        changed, self._has_changed = self._has_changed, False
        return changed

    def metrics(self) -> list[Any]:
        """Returns the metrics of the model, with those that it and the models in it were compiled with."""
        from keras.src.trainers.compile_utils import CompileMetrics
        from keras.src.trainers.trainer import Trainer

        found: dict[int, Any] = {}
        # A model may say that it has other metrics than those that Keras has found in its attributes.
        of_model = (*self._model.metrics, *getattr(self._model, "_metrics", ()))
        # Keras leaves out those of a model within the model.
        inner = [layer for layer in self._model._flatten_layers(include_self=False) if isinstance(layer, Trainer)]
        for metric in (*of_model, *(one for model in inner for one in model.metrics)):
            # The compiled metrics are listed as one that has no variables of its own.
            for one in metric.metrics if isinstance(metric, CompileMetrics) else (metric,):
                found[id(one)] = one
        return list(found.values())

    def variables(self) -> list[Any]:
        """Returns the variables of which each replica has a part of the sum."""
        return [variable for metric in self.metrics() for variable in summed_variables(metric)]

    @contextlib.contextmanager
    def remembered(self) -> Iterator[None]:
        """Remembers the results that metrics return within the context, which is entered in cross-replica context."""
        self._known.clear()
        # All replicas have to do the same.
        self._are_summed = self._sum_next
        metrics = self.metrics()
        for metric in metrics:
            vars(metric)["result"] = functools.partial(self._result, metric, metric.result)
        try:
            yield
        finally:
            for metric in metrics:
                vars(metric).pop("result", None)

    @contextlib.contextmanager
    def on_replica(self) -> Iterator[None]:
        """Says that the context is the step of a replica, in whose graph all replicas compute the same."""
        with temporarily(self._local, graph=_graph()):
            yield

    def metric_of(self, log: Any) -> tuple[Any, str] | None:
        """Returns the metric of which a log is the result, and the name of the result; None if it is none."""
        found = self._known.get(id(log))
        return None if found is None else found[1:]

    def is_made_of_results(self, log: Any) -> bool:
        """Returns whether a log that is a tensor of a graph was computed from the variables of a metric."""
        if not hasattr(log, "graph"):
            return False
        handles = {
            id(component.handle)
            for variable in self.variables()
            for component in getattr(variable.value, "values", (variable.value,))
        }
        captured = {id(internal): id(external) for external, internal in log.graph.captures}
        return any(captured.get(id(one)) in handles for one in itertools.islice(reached(log), _OPERATIONS))

    def _result(self, metric: Any, stock: Callable[[], Any]) -> Any:
        # The result of a metric within another metric is a part of the result of the outer one.
        if getattr(self._local, "is_within", None):
            return stock()
        with temporarily(self._local, is_within=True):
            result = self._of_all_replicas(metric, stock) if self._can_sum() else stock()
        for name, value in _results(metric, result).items():
            self._known[id(value)] = (value, metric, name)
        return result

    def _can_sum(self) -> bool:
        # In a branch or a loop of the program, replicas may differ in what they compute.
        return self._are_summed and getattr(self._local, "graph", None) is _graph()

    def _of_all_replicas(self, metric: Any, stock: Callable[[], Any]) -> Any:
        variables = summed_variables(metric)
        return result_of(stock, variables, sum_gradients([tf.identity(variable.value) for variable in variables]))


def summed_variables(metric: Any) -> list[Any]:
    """Returns the variables of a metric of which each replica has a part of the sum."""
    return [variable for variable in metric.variables if variable.aggregation == "sum"]


def result_of(result: Callable[[], Any], variables: list[Any], values: list[Any]) -> Any:
    """Returns what a function returns if variables have the given values.

    Args:
        result: the function, such as the result of a metric.
        variables: Keras variables.
        values: a tensor for each variable.
    """
    from keras.src.backend import StatelessScope

    if not variables:
        return result()
    with StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
        return result()


def results_by_name(metric: Any, variables: list[Any], values: list[Any]) -> dict[str, Any]:
    """Returns the results of a metric by their names, if variables have the given values.

    Args:
        metric: the metric.
        variables: variables of this metric, and of others.
        values: a tensor for each variable.
    """
    return _results(metric, result_of(metric.result, variables, values))


def _results(metric: Any, result: Any) -> dict[str, Any]:
    return flat_logs(result) if isinstance(result, Mapping) else {metric.name: result}


def _graph() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
