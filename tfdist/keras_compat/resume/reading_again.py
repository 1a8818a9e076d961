"""Reads batches that had been read before an interruption, and says how many."""

from __future__ import annotations

import threading
from typing import Any

from tfdist._log import get_logger

_local = threading.local()


def read_batches(iterator: Any, batches: int) -> None:
    """Reads batches and discards them.

    Args:
        iterator: iterator of a distributed dataset or of a dataset.
        batches: number of batches.
    """
    for _ in range(batches):
        next(iterator)
    _local.batches = getattr(_local, "batches", 0) + batches


def say_what_was_read() -> None:
    """Writes to the log how many batches this thread has read since the last call, if any."""
    batches, _local.batches = getattr(_local, "batches", 0), 0
    if batches:
        get_logger().info("%d batches were read again to go on with the next one", batches)
