"""Notices that TensorFlow traces functions, which may take long and is no stall.

The compilation that follows a trace runs in native code, in which nothing shows that it is a compilation. Therefore the
number of functions that TensorFlow knows is compared, too.
"""

from __future__ import annotations

from tfdist.watch.frames import is_tracing


class Traces:
    """Whether the current step has traced.

    Args:
        trainer: `threading.get_ident()` of the thread that trains.
    """

    def __init__(self, trainer: int) -> None:
        self._trainer = trainer
        self._step, self._count = 0, count_functions()

    def seen(self, *, step: int) -> bool:
        """Returns whether a trace runs, or has ended in this step since the last call of this method.

        Functions that are new since the last call may be those of the step before. A trace is then seen too many, and
        not too few.

        Args:
            step: number of the current step, of training or evaluation.
        """
        count = count_functions()
        has_grown = count > self._count and step - self._step <= 1
        self._step, self._count = step, count
        return has_grown or is_tracing(self._trainer)


def count_functions() -> int:
    """Returns how many functions TensorFlow has traced and not yet removed."""
    from tensorflow.python.eager import context

    return len(context.context().list_function_names())
