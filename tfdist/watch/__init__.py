"""The watch beside a training: every worker tells the others where it is, and stalls are named.

`StallWatch` is a callback for Keras's fit, `Watch` is for training loops of one's own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.watch.options import WatchOptions
    from tfdist.watch.stall_watch import StallWatch
    from tfdist.watch.watch import Watch

__all__ = ["StallWatch", "Watch", "WatchOptions"]
_MODULES = {
    "StallWatch": "tfdist.watch.stall_watch",
    "Watch": "tfdist.watch.watch",
    "WatchOptions": "tfdist.watch.options",
}


def __getattr__(name: str) -> Any:
    # The mesh needs no TensorFlow.
    if name in _MODULES:
        if name != "WatchOptions":
            importlib.import_module("tfdist._needs_tensorflow")
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'tfdist.watch' has no attribute {name!r}")
