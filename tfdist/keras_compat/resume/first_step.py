"""Runs an action after the first train step has been traced, which makes its variables, and before it is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def before_first_step(
    model: Any,
    action: Callable[[], None],
    *,
    makes_variables: bool = True,
    batches: int = 0,
    logs: Mapping[str, Any] | None = None,
) -> None:
    """Calls an action once, before the next train step of a model is executed.

    Args:
        model: a model in fit.
        action: the action; the variables that the trace of the step makes exist.
        makes_variables: whether the action needs variables that the step makes.
        batches: number of batches to read instead of executing the step, if it was executed before an interruption.
        logs: what the step has returned then, or None if it is executed.
    """
    function = model.train_function

    def first_step(iterator: Any) -> Any:
        model.train_function = function
        trace = getattr(function, "trace", None) or getattr(function, "get_concrete_function", None)
        if trace is not None:
            trace(iterator)
        elif makes_variables:
            # On one device, Keras 3 has a function of Python around those of TensorFlow, and so has run_eagerly=True.
            _trace_step(model, iterator)
        action()
        if logs is None:
            return function(iterator)
        for _ in range(batches):
            # The last execution of an epoch may have had fewer batches than steps_per_execution.
            next(iterator, None)
        return dict(logs)

    model.train_function = first_step


def _trace_step(model: Any, iterator: Any) -> None:
    """Makes the variables of a train step in a trace that is never executed.

    Any variable that the step makes is made: those of optimizers, metrics and layers that Keras does not know, too.
    """
    # Keras 3.12 and later turn empty optionals in the data into None.
    step = getattr(model, "_autoconvert_optionals", _unchanged)(model.train_step)

    def run(batches: Any) -> Any:
        return model.distribute_strategy.run(step, args=(batches.get_next(),))

    tf.function(tf.autograph.experimental.do_not_convert(run)).get_concrete_function(iterator)


def _unchanged(step: Callable) -> Callable:
    return step
