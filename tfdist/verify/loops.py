"""Records the first steps of a program that trains in a loop of its own with strategy.run."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.version import keras
from tfdist.verify.recording import Recorder, Verified
from tfdist.verify.returned import ReturnedByRun


class LoopRecorder:
    """Records a step whenever a call of a tf.function, or of strategy.run, has changed the count of an optimizer.

    Args:
        recorder: takes the steps.
        steps: number of steps after which the program ends.
    """

    def __init__(self, recorder: Recorder, *, steps: int) -> None:
        self._recorder, self._steps = recorder, steps
        self._optimizers: list[Any] = []
        self._counts: list[int] = []
        self._models: list[Any] = []
        self._trained: list[Any] = []
        self._is_inside = False
        self._reduced = 0
        self._returned = ReturnedByRun()

    def install(self, strategy: Any) -> None:
        """Patches the optimizers, tf.function and strategy.run; call it after create_strategy."""
        optimizer_class = keras().optimizers.Optimizer
        make = optimizer_class.__init__

        @functools.wraps(make)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            if all(optimizer is not known for known in self._optimizers):
                self._optimizers.append(optimizer)

        optimizer_class.__init__ = init
        optimizer_class.build = self._noting_variables(optimizer_class.build)
        function_class: Any = type(tf.function(lambda: None))
        function_class.__call__ = self._recording(function_class.__call__)
        run = self._noting_rows(strategy.run)
        # A loop without tf.function calls strategy.run eagerly.
        object.__setattr__(strategy, "run", self._recording(run, is_run=True))
        object.__setattr__(strategy, "reduce", self._noting_reduced(strategy.reduce))

    def _noting_variables(self, build: Callable) -> Callable:
        @functools.wraps(build)
        def build_noting(optimizer: Any, variables: Any, *args: Any, **kwargs: Any) -> Any:
            variables = list(variables)
            self._trained += variables
            return build(optimizer, variables, *args, **kwargs)

        return build_noting

    def finish(self) -> None:
        """Looks at the models after the last step."""
        if self.has_steps:
            for model in self._models:
                self._recorder.look_at(model)

    @property
    def has_steps(self) -> bool:
        """Whether the program has trained in a loop of its own."""
        return self._recorder.record.is_loop

    def _recording(self, stock: Callable, *, is_run: bool = False) -> Callable:
        @functools.wraps(stock)
        def call(*args: Any, **kwargs: Any) -> Any:
            in_main = threading.current_thread() is threading.main_thread()
            if self._is_inside or self._recorder.is_driven or not in_main or not tf.executing_eagerly():
                return stock(*args, **kwargs)
            self._is_inside = True
            try:
                self._prepare()
                result = stock(*args, **kwargs)
                self._look_for_a_step(result, is_of_replicas=is_run)
            finally:
                self._is_inside = False
            return result

        return call

    def _noting_reduced(self, reduce: Callable) -> Callable:
        """Returns a strategy.reduce whose results between two steps count as numbers of the step before."""

        @functools.wraps(reduce)
        def reduce_noting(*args: Any, **kwargs: Any) -> Any:
            reduced = reduce(*args, **kwargs)
            record = self._recorder.record
            if self._recorder.is_driven:
                return reduced
            if not tf.executing_eagerly():
                return self._returned.reduced(reduced)
            if record.is_loop and not self._is_inside:
                self._reduced += 1
                record.logs[-1] |= _numbers(reduced, name=f"reduced {self._reduced}")
            return reduced

        return reduce_noting

    def _noting_rows(self, run: Callable) -> Callable:
        @functools.wraps(run)
        def run_noting(fn: Callable, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if self._recorder.is_driven:
                return run(fn, args=args, kwargs=kwargs, options=options)

            @functools.wraps(fn)
            def noting(*own_args: Any, **own_kwargs: Any) -> Any:
                given = [value for value in tf.nest.flatten((own_args, own_kwargs)) if tf.is_tensor(value)]
                rows = [value for value in given if value.shape.rank]
                if rows:
                    self._recorder.note(rows, keeps=False)
                with self._recorder.watched():
                    returned = fn(*own_args, **own_kwargs)
                return returned

            returned = run(noting, args=args, kwargs=kwargs, options=options)
            self._returned.note(returned)
            return returned

        return run_noting

    def _prepare(self) -> None:
        """Changes the models for the experiment, before the first step."""
        if not self._models and self._optimizers:
            self._models = _models()
            for number, model in enumerate(self._models, 1):
                self._recorder.begin(model, number=number)
            self._recorder.is_driven = False
            self._counts = self._counted()

    def _counted(self) -> list[int]:
        return [int(tf.convert_to_tensor(optimizer.iterations)) for optimizer in self._optimizers]

    def _look_for_a_step(self, result: Any, *, is_of_replicas: bool) -> None:
        counts = self._counted()
        if counts == self._counts:
            return
        self._counts = counts
        self._reduced = 0
        self._recorder.record.is_loop = True
        numbers = {} if is_of_replicas else _numbers(self._returned.without(result), name="result")
        self._recorder.add_values(_weights(self._trained), {**numbers, **_metrics()})
        if self._recorder.has_enough():
            raise Verified


def _numbers(values: Any, *, name: str) -> dict[str, float]:
    """Returns the floating-point numbers in a structure of tensors; several ones with their places from 1."""
    leaves = tf.nest.flatten(values)
    return {
        f"{name} {i + 1}" if len(leaves) > 1 else name: float(value)
        for i, value in enumerate(leaves)
        if isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
    }


def _models() -> list[Any]:
    """Returns all models of the program, by name."""
    return sorted(_all_of(keras().Model), key=lambda model: model.name)


def _metrics() -> dict[str, float]:
    """Returns the results of all metrics of the program whose names occur once."""
    metrics = _all_of(keras().metrics.Metric)
    times = Counter(metric.name for metric in metrics)
    found: dict[str, float] = {}
    for metric in sorted(metrics, key=lambda metric: metric.name):
        # A metric that has no variables yet has no result.
        with contextlib.suppress(Exception):
            if times[metric.name] == 1:
                found |= _numbers(metric.result(), name=metric.name)
    return found


def _all_of(kind: type) -> list[Any]:
    # isinstance() would ask lazily imported modules for their class.
    return [value for value in gc.get_objects() if issubclass(type(value), kind)]


def _weights(trained: list[Any]) -> dict[str, np.ndarray]:
    """Returns the weights of all models, and other variables that are trained, by name; each variable once."""
    found: dict[str, np.ndarray] = {}
    seen: set[int] = set()
    for weight in [*(weight for model in _models() for weight in model.weights), *trained]:
        # A variable of Keras 3 is around one of TensorFlow, which an optimizer may have instead.
        variable = weight._value if hasattr(weight, "path") else weight
        if id(variable) not in seen:
            seen.add(id(variable))
            name = getattr(weight, "path", None) or weight.name
            while name in found:
                name += "_"
            found[name] = np.array(tf.convert_to_tensor(weight))
    return found
