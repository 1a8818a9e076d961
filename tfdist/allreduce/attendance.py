"""Attendance: which workers wait in a sum of gradients, so that the error of a sum names the workers that do not.

A worker that waits stores a key in the coordination service of TensorFlow, which worker 0 runs on threads that need no
Python. A worker that does something else stores nothing, and needs no time for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_KEY = "tfdist/waits_in_a_sum/"
# How long to look for the key of one worker. The call holds the global interpreter lock meanwhile.
_LOOK_UP_MILLISECONDS = 200


class Attendance:
    """Stores that this worker waits, and looks up which of the other workers wait.

    Args:
        strategy: a strategy of several workers, which tfdist has made.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        resolver = strategy.cluster_resolver
        spec = resolver.cluster_spec()
        self._own = f"{resolver.task_type} {resolver.task_id}"
        names = [
            f"{job} {index}" for job in ("chief", "worker") if job in spec.jobs for index in spec.task_indices(job)
        ]
        self._others = [name for name in names if name != self._own]
        self._stored: int | None = None

    def arrive(self, number: int) -> None:
        """Stores that this worker waits in the sum with this number."""
        if self._stored != number:
            self.leave()
            with contextlib.suppress(tf.errors.OpError):
                _service().set_config_key_value(_KEY + self._own, str(number))
                self._stored = number

    def leave(self) -> None:
        """Stores that this worker no longer waits."""
        if self._stored is not None:
            with contextlib.suppress(tf.errors.OpError):
                _service().delete_config_key_value(_KEY + self._own)
            self._stored = None

    def look_up(self) -> dict[str, int | None] | None:
        """Returns the number of the sum in which each worker waits, None for a worker that waits in no sum.

        Returns:
            The numbers by the names of the workers; None if they cannot be known.
        """
        if self._stored is None:
            return None
        found: dict[str, int | None] = {self._own: self._stored}
        for name in self._others:
            try:
                found[name] = int(_service().get_config_key_value(_KEY + name, _LOOK_UP_MILLISECONDS))
            except (tf.errors.DeadlineExceededError, tf.errors.NotFoundError):
                found[name] = None
            except tf.errors.OpError:
                return None
        return found


def describe(attendance: Mapping[str, int | None] | None) -> str:
    """Returns who keeps a sum waiting, as the end of a sentence that begins with "a sum waits for".

    Args:
        attendance: what `Attendance.look_up` returned.

    Example:
        >>> from tfdist.allreduce.attendance import describe
        >>> describe({"worker 0": 7, "worker 1": None})
        'worker 1'
        >>> describe({"worker 0": 7, "worker 1": 8})
        'workers that are in different sums (worker 0 in sum 7, worker 1 in sum 8)'
        >>> describe(None)
        'at least one worker'
    """
    if attendance is None:
        return "at least one worker"
    absent = [name for name, number in attendance.items() if number is None]
    if absent:
        return " and ".join([", ".join(absent[:-1]), absent[-1]] if len(absent) > 1 else absent)
    if len(set(attendance.values())) > 1:
        sums = ", ".join(f"{name} in sum {number}" for name, number in attendance.items())
        return f"workers that are in different sums ({sums})"
    return "the network, since every worker waits in this sum"


def _service() -> Any:
    from tensorflow.python.eager import context

    return context.context()
