"""Mends Keras 3's compile, which makes the variables of a model's training in the caller's scope.

A model belongs to the strategy whose scope it was made in. If `compile` is called outside of this scope, the step
counter, the learning rate and the total of the loss are no variables of the strategy: with N replicas the steps count
N times, so that a schedule of the learning rate is too fast, and each worker reports the loss of its own rows. With the
mend, `compile` and `compile_from_config` enter the scope of the model.

An optimizer or a metric that was itself made outside of the scope gets its variables anew, with their values, in the
scope. This happens in `compile`, and before the first step for what a model keeps in attributes, as a GAN does. It is
refused if other programs may have used the variables: if the optimizer was built, if a total is not 0, or if they are
variables of another strategy.

Keras 2's compile enters the scope, and refuses metrics that were made outside of it.

Source: Trainer.compile in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import trainer_class

# The methods that trace the steps of a model, and the attribute that keeps the traced function.
_TRACING = {
    "fit": "train_function",
    "train_on_batch": "train_function",
    "evaluate": "test_function",
    "test_on_batch": "test_function",
}


def _defect_present() -> bool:
    from keras.src.trainers import trainer

    # Reads the source of the whole file, because another mend may have replaced the method.
    return "distribute_strategy.scope()" not in inspect.getsource(trainer)


def _apply() -> None:
    trainer = trainer_class()
    for name, replace in (("compile", _compiling), ("compile_from_config", _in_the_scope)):
        # A base class has these methods; a model whose class has another `compile` is not compiled when it is loaded.
        patch_method(next(one for one in trainer.__mro__ if name in vars(one)), name, replace)
    for name, function in _TRACING.items():
        patch_method(trainer, name, functools.partial(_with_attributes, function=function))


def _in_the_scope(stock: Callable) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _scope_of(self):
            return stock(self, *args, **kwargs)

    return method


def _compiling(stock: Callable) -> Callable:
    compile_in_scope, signature = _in_the_scope(stock), inspect.signature(stock)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = compile_in_scope(self, *args, **kwargs)
        # A model shows these metrics only after they have seen data.
        given = signature.bind(self, *args, **kwargs).arguments
        metrics = tf.nest.flatten([given.get("metrics"), given.get("weighted_metrics")])
        _take_into_scope(self, [one for one in metrics if isinstance(one, tf.keras.metrics.Metric)])
        return result

    return method


def _with_attributes(stock: Callable, function: str) -> Callable:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A function that was traced before uses the variables that it was traced with.
        if getattr(self, function, None) is None:
            _take_into_scope(self, self.metrics)
        return stock(self, *args, **kwargs)

    return method


def _scope_of(model: Any) -> Any:
    """Returns the scope of a model's strategy; nothing if the caller is in it, or if the model has no strategy."""
    strategy = _strategy_of(model)
    current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    if strategy is None or strategy is current:
        return contextlib.nullcontext()
    if current is not None:
        raise ValueError(
            "expected compile in the strategy.scope() that the model was made in, or outside of any scope, received it "
            f"in the scope of another {type(current).__name__}; call compile outside of that scope."
        )
    return strategy.scope()


def _strategy_of(model: Any) -> tf.distribute.Strategy | None:
    return getattr(model, "_distribute_strategy", None)


def _take_into_scope(model: Any, metrics: Iterable[Any]) -> None:
    """Makes variables of optimizers and metrics anew in the scope of the model's strategy, if they are not of it.

    Raises:
        ValueError: if the variables may be in use elsewhere.
    """
    strategy = _strategy_of(model)
    if strategy is None:
        return
    for optimizer in _optimizers(model):
        if _make_anew(strategy, optimizer, _is_built):
            # The optimizer updates variables, and makes further ones, by the strategy of its constructor.
            optimizer._distribution_strategy = strategy
    for metric in metrics:
        _make_anew(strategy, metric, _has_counted)


def _optimizers(model: Any) -> Iterator[Any]:
    """Returns the optimizers that a model has as attributes, each after the one that it wraps.

    The variables of an optimizer include those of the one that it wraps.
    """
    for value in list(vars(model).values()):
        chain = []
        while isinstance(value, tf.keras.optimizers.Optimizer):
            chain.append(value)
            value = getattr(value, "inner_optimizer", None)
        yield from reversed(chain)


def _is_built(optimizer: Any) -> bool:
    return bool(optimizer.built)


def _has_counted(metric: Any) -> bool:
    # Each replica would begin with the whole total, and the sum over the replicas would be read.
    return any(one.aggregation == "sum" and np.any(one.numpy()) for one in metric.variables)


def _make_anew(strategy: tf.distribute.Strategy, owner: Any, is_used: Callable[[Any], bool]) -> bool:
    """Makes the variables of an optimizer or a metric anew in the scope, and returns whether there were any outside.

    Args:
        strategy: the strategy of the model.
        owner: the optimizer or the metric.
        is_used: returns whether other programs may have used the variables of this owner.
    """
    is_inside = strategy.extended.variable_created_in_scope
    # The mends of parameter servers keep the totals of metrics in objects that are no variables of TensorFlow.
    made = [one for one in owner.variables if hasattr(one._value, "_distribute_strategy")]
    outside = [one for one in made if not is_inside(one._value)]
    if any(getattr(one._value, "_distribute_strategy", None) is not None for one in outside):
        raise _refusal(owner, "in the scope of another strategy")
    if outside and is_used(owner):
        raise _refusal(owner, "and used outside of all scopes")
    for variable in outside:
        value = variable.numpy()
        # The mend metrics_summed_at_each_update asks for this.
        variable._tfdist_is_of_metric = isinstance(owner, tf.keras.metrics.Metric)
        # The variable of Keras stays, because optimizers and metrics have it in several lists.
        with strategy.scope():
            variable._initialize(value)
    return bool(outside)


def _refusal(owner: Any, where: str) -> ValueError:
    return ValueError(
        "expected the optimizer and the metrics of a model to be made in the strategy.scope() of the model, received "
        f"{owner.name}, made {where}; make it in the scope of the model."
    )


MEND = Mend(
    name="compiled_outside_of_scope",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="after `compile` outside of the scope, each replica counts the steps, and each worker reports another loss",
    without_row="the programs of the rows compile in the scope; "
    "tests/keras_compat_unit/test_compile_outside_of_scope.py shows it",
)
