"""Records on each replica's thread whether the gradients of the replica have been summed over replicas."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_local = threading.local()


def is_summed() -> bool:
    """Returns whether the gradients of this replica have been summed over replicas."""
    return bool(getattr(_local, "summed", 0))


@contextlib.contextmanager
def summed() -> Iterator[None]:
    """Marks the gradients of this replica as summed over replicas, within the context."""
    _local.summed = getattr(_local, "summed", 0) + 1
    try:
        yield
    finally:
        _local.summed -= 1
