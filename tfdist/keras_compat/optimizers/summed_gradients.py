"""Whether an optimizer is given gradients of one replica or of the global batch, known for each replica's thread."""

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
    """Marks the gradients in the body, on this replica's thread, as gradients of the global batch."""
    _local.summed = getattr(_local, "summed", 0) + 1
    try:
        yield
    finally:
        _local.summed -= 1
