"""Rendezvous: the workers tell each other where they listen, through the coordination service of TensorFlow."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

_numbers = itertools.count()


class Rendezvous:
    """Exchanges texts between the workers of a strategy. All workers make the same calls in the same order.

    Args:
        worker: index of this worker.
        workers: number of workers.
        timeout_seconds: how long to wait for the others in all calls together.
    """

    def __init__(self, *, worker: int, workers: int, timeout_seconds: float) -> None:
        self._worker, self._workers = worker, workers
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._place = f"tfdist/native/{next(_numbers)}"

    def run_id(self, *, keep_seconds: float = 0.0) -> str:
        """Returns a secret of the chief, which only the workers of this cluster read.

        Args:
            keep_seconds: how much of the time to leave for later calls.

        Raises:
            TimeoutError: if the chief does not send it in time.
        """
        if self._worker == 0:
            _service().set_config_key_value(f"{self._place}/run", secrets.token_hex(32))
        return self._get("run", worker=0, keep_seconds=keep_seconds)

    def exchange(self, what: str, values: Mapping[str, Any], *, keep_seconds: float = 0.0) -> list[dict[str, Any]]:
        """Returns the values of all workers, in the order of the workers.

        Args:
            what: a word for this exchange.
            values: of this worker; plain values for JSON.
            keep_seconds: how much of the time to leave for later calls.

        Raises:
            TimeoutError: if a worker does not send its values in time.
        """
        _service().set_config_key_value(f"{self._place}/{what}/{self._worker}", json.dumps(dict(values)))
        return [
            json.loads(self._get(f"{what}/{worker}", worker=worker, keep_seconds=keep_seconds))
            for worker in range(self._workers)
        ]

    def _get(self, key: str, *, worker: int, keep_seconds: float) -> str:
        left = max(1, int(1000 * (self._deadline - keep_seconds - time.monotonic())))
        try:
            return str(_service().get_config_key_value(f"{self._place}/{key}", left))
        except tf.errors.DeadlineExceededError:
            raise TimeoutError(
                f"expected worker number {worker} to agree on a transport within "
                f"{self._timeout_seconds - keep_seconds:g} s; give all workers the same release of tfdist and the same "
                "options of all_reduce."
            ) from None


def _service() -> Any:
    from tensorflow.python.eager import context

    return context.context()
