"""TracedByRule: a traced step that the first trace may show to be traced again, as by another loss rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.rule import StepRule
from tfdist.keras_compat.steps.batch_of_replicas import spec_of_batch


class TracedByRule:
    """A tf.function that is traced again, before it runs, if the first trace changed the rule after using it.

    Args:
        function: takes data or an iterator, and runs a step in cross-replica context.
        rule: rule of the step.
        takes_change: returns whether something else changed, so that the step must be traced again.
    """

    def __init__(
        self, function: Callable[[Any], Any], rule: StepRule, takes_change: Callable[[], bool] = lambda: False
    ) -> None:
        self._function, self._rule = tf.autograph.experimental.do_not_convert(function), rule
        self._takes_change = takes_change
        self._traced: Any = None

    def __call__(self, data: Any) -> Any:
        """Runs the step.

        Raises:
            ValueError: if the rule changes in a later trace.
        """
        self.trace(data)
        result = self._traced(data)
        self._rule.refuse_change()
        return result

    def trace(self, data: Any) -> None:
        """Traces the step, which makes the variables that it needs, if it has not been traced before.

        Raises:
            ValueError: if a replica makes a variable that does not exist yet.
        """
        if self._traced is None:
            self._traced = self._trace(data)
            if self._rule.takes_change() | self._takes_change():
                self._traced = self._trace(data)

    def _trace(self, data: Any) -> Any:
        traced = tf.function(self._function, reduce_retracing=True)
        try:
            traced.get_concrete_function(spec_of_batch(data))
        except Exception as error:
            _explain(error)
            raise
        return traced


def _explain(error: Exception) -> None:
    """Raises ValueError for TensorFlow's error about a variable that a step makes on the first of several replicas."""
    # TensorFlow does not export the class of this error.
    if type(error).__name__ == "UnliftableError":
        found = re.search(r"'(.+?)(/replica_\d+)?/Initializer", str(error))
        raise ValueError(
            "expected the variables of a step on several replicas to be made before the step, received "
            f"{found[1] if found else 'a variable'}, which the step makes; build or call what has it, such as a layer "
            "or a metric, once before fit."
        ) from error


def checked_by_rule(function: Callable[[Any], Any], rule: StepRule) -> Callable[[Any], Any]:
    """Returns a function that is executed eagerly and refuses a change of the rule after its use.

    Args:
        function: takes data or an iterator, and runs a step in cross-replica context.
        rule: rule of the step.
    """

    def checked(data: Any) -> Any:
        result = function(data)
        rule.refuse_change()
        return result

    return checked
