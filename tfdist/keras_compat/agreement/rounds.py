"""Exchange of texts between the workers through the coordination service of TensorFlow, which worker 0 runs.

Unlike a collective, the exchange needs no agreement about shapes, dtypes or the number of collectives, and the cluster
can still be used after it has shown a difference.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger

_ROOT = "tfdist/agreement"
_AGREE, _TEXTS, _LATE = "agree", "texts", "late: "
# How long a look-up waits for a key. It holds the global interpreter lock meanwhile.
_LOOK_UP_MILLISECONDS = 50
_FIRST_REPORT_SECONDS = 60.0
_HEALTH_SECONDS = 10.0
# Worker 0 names the absent worker. The others wait a little longer than worker 0.
_GRACE_SECONDS = 30.0
_ABSENT = (tf.errors.DeadlineExceededError, tf.errors.NotFoundError)
_numbers_of_process = itertools.count()


class Rounds:
    """Compares a text of every worker. Every worker makes the same calls in the same order.

    Args:
        tasks: job and index of each worker, ordered by worker.
        own: number of this worker.
        numbers: numbers of the comparisons. All strategies of a process share them, as they share the service.
    """

    def __init__(
        self, tasks: Sequence[tuple[str, int]], own: int, numbers: Iterator[int] = _numbers_of_process
    ) -> None:
        self._names = [f"{job} {index}" for job, index in tasks]
        self._devices = [f"/job:{job}/replica:0/task:{index}" for job, index in tasks]
        self._own, self._numbers = own, numbers

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> Rounds:
        """Returns the comparisons of the workers of a strategy that tfdist has made."""
        resolver = strategy.cluster_resolver
        spec = resolver.cluster_spec()
        tasks = [(job, index) for job in ("chief", "worker") if job in spec.jobs for index in spec.task_indices(job)]
        return cls(tasks, tasks.index((resolver.task_type, resolver.task_id)))

    def compare(
        self,
        *,
        key: str,
        text: str,
        explain: Callable[[Sequence[str], Sequence[str]], str],
        to: str,
        timeout_seconds: float,
    ) -> None:
        """Waits for all workers; if their keys differ, raises on every worker the explanation of worker 0.

        Args:
            key: a short text that is compared.
            text: a text that is exchanged only if the keys differ.
            explain: given the names of the workers and their texts, returns the message, or an empty text if the
                workers agree nevertheless.
            to: what every worker has to do, such as "call fit", for messages.
            timeout_seconds: how long worker 0 waits for the others.

        Raises:
            ValueError: if the workers disagree.
            TimeoutError: if a worker does not come in time.
            tf.errors.UnavailableError: if the process of a worker has ended.
        """
        number = next(self._numbers)
        folder = f"{_ROOT}/{number}"
        waiting = _Waiting(to, timeout_seconds)
        if self._own == 0:
            try:
                verdict = self._judge(folder, number, key, text, explain, waiting)
            except TimeoutError as error:
                # If worker 0 has already asked for texts, the other workers wait until their own timeout.
                with contextlib.suppress(tf.errors.AlreadyExistsError):
                    _service().set_config_key_value(f"{folder}/verdict", f"{_LATE}{error}")
                raise
        else:
            waiting.grace(_GRACE_SECONDS)
            try:
                verdict = self._ask(folder, key, text, waiting)
            except tf.errors.UnavailableError as error:
                raise waiting.gone(self._names[0]) from error
        if verdict.startswith(_LATE):
            raise TimeoutError(verdict.removeprefix(_LATE))
        if verdict != _AGREE:
            raise ValueError(verdict)

    def _ask(self, folder: str, key: str, text: str, waiting: _Waiting) -> str:
        """Returns the verdict of worker 0."""
        _service().set_config_key_value(f"{folder}/key/{self._own}", key)
        verdict = self._get(f"{folder}/verdict", 0, waiting)
        if verdict != _TEXTS:
            return verdict
        _service().set_config_key_value(f"{folder}/text/{self._own}", text)
        return self._get(f"{folder}/message", 0, waiting)

    def _judge(
        self,
        folder: str,
        number: int,
        key: str,
        text: str,
        explain: Callable[[Sequence[str], Sequence[str]], str],
        waiting: _Waiting,
    ) -> str:
        """Returns the verdict, which worker 0 gives."""
        others = range(1, len(self._names))
        keys = [self._get(f"{folder}/key/{i}", i, waiting) for i in others]
        if number:
            # Every worker has read the previous verdict, since it has begun this comparison.
            _service().delete_config_key_value(f"{_ROOT}/{number - 1}")
        if all(other == key for other in keys):
            _service().set_config_key_value(f"{folder}/verdict", _AGREE)
            return _AGREE
        _service().set_config_key_value(f"{folder}/verdict", _TEXTS)
        texts = [text, *(self._get(f"{folder}/text/{i}", i, waiting) for i in others)]
        message = explain(self._names, texts) or _AGREE
        _service().set_config_key_value(f"{folder}/message", message)
        return message

    def _get(self, key: str, worker: int, waiting: _Waiting) -> str:
        """Waits for the value that a worker stores under a key."""
        while True:
            try:
                return _service().get_config_key_value(key, _LOOK_UP_MILLISECONDS)
            except _ABSENT:
                waiting.check(self._names[worker], self._devices[worker])


class _Waiting:
    """The time that a comparison has waited, the lines of the log about it, and its end."""

    def __init__(self, to: str, timeout_seconds: float) -> None:
        self._to, self._timeout = to, timeout_seconds
        self._start = time.monotonic()
        self._report_at, self._health_at = _FIRST_REPORT_SECONDS, _HEALTH_SECONDS

    def grace(self, seconds: float) -> None:
        """Waits longer."""
        self._timeout += seconds

    def gone(self, name: str) -> tf.errors.UnavailableError:
        """Returns the error about a worker whose process has ended."""
        text = f"expected every worker to {self._to}, received no answer from {name}, whose process has ended."
        return tf.errors.UnavailableError(None, None, text)

    def check(self, name: str, device: str) -> None:
        """Sleeps a little; raises an error if the worker has gone, or if the comparison has waited too long.

        Raises:
            TimeoutError: after the timeout.
            tf.errors.UnavailableError: if the process of the worker has ended.
        """
        waited = time.monotonic() - self._start
        if waited > self._timeout:
            raise TimeoutError(
                f"expected every worker to {self._to} within {self._timeout:g} s, waited for {name}; find out in its "
                "log what it does instead, or raise timeout_seconds of AllReduceOptions."
            )
        if waited > self._health_at:
            self._health_at = waited + _HEALTH_SECONDS
            try:
                _service().check_collective_ops_peer_health(device, timeout_in_ms=int(_HEALTH_SECONDS * 1000))
            except tf.errors.DeadlineExceededError:
                # The process is stopped, or its machine is busy.
                pass
            except tf.errors.OpError as error:
                raise self.gone(name) from error
        if waited > self._report_at:
            self._report_at = 2 * waited
            get_logger().warning("still waiting after %.0f s for %s to %s", waited, name, self._to)
        # Other threads of this process run meanwhile.
        time.sleep(min(0.05, waited / 10))


def _service() -> Any:
    from tensorflow.python.eager import context

    return context.context()
