"""Runs an action after the first train step has been traced, which makes its variables, and before it is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def before_first_step(
    model: Any, action: Callable[[], None], *, batches: int = 0, logs: Mapping[str, Any] | None = None
) -> None:
    """Calls an action once, before the next train step of a model is executed.

    Args:
        model: a model in fit.
        action: the action; the variables that the trace of the step makes exist.
        batches: number of batches to read instead of executing the step, if it was executed before an interruption.
        logs: what the step has returned then, or None if it is executed.
    """
    function = model.train_function

    def first_step(iterator: Any) -> Any:
        model.train_function = function
        trace = getattr(function, "trace", None) or getattr(function, "get_concrete_function", None)
        if trace is not None:
            trace(iterator)
        action()
        if logs is None:
            return function(iterator)
        for _ in range(batches):
            next(iterator)
        return dict(logs)

    model.train_function = first_step
