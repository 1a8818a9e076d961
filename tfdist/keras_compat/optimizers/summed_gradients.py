"""Whether the gradients that an optimizer is given are already those of the global batch; known by replica's thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_local = threading.local()


def is_summed() -> bool:
    """Whether the gradients of this replica have been summed over replicas."""
    return bool(getattr(_local, "summed", 0))


@contextlib.contextmanager
def summed() -> Iterator[None]:
    """Within, on this replica's thread, gradients are those of the global batch."""
    _local.summed = getattr(_local, "summed", 0) + 1
    try:
        yield
    finally:
        _local.summed -= 1
