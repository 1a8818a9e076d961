"""Distributed training for TensorFlow 2 and Keras: one program runs on any strategy and computes the same numbers.

`import tfdist` does not import TensorFlow. A sub-package is imported at its first use, so that the command line starts
quickly.

Example:
    >>> import tfdist
    >>> tfdist.__version__.count(".") >= 2
    True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfdist._version import __version__

if TYPE_CHECKING:
    from tfdist.adoption import adopt as adopt
    from tfdist.allreduce import AllReduceOptions
    from tfdist.strategies import create_strategy
    from tfdist.verify.model import verify as verify

_ROOMS = (
    "adoption",
    "allreduce",
    "averaging",
    "bench",
    "checkpoint",
    "cluster",
    "collectives",
    "doctor",
    "flags",
    "input",
    "keras_compat",
    "launch",
    "layers",
    "notebook",
    "optimizers",
    "render",
    "saving",
    "strategies",
    "train",
    "verify",
    "watch",
    "workers",
)
# Sub-packages that need an extra. `from tfdist import *` imports none of them.
_ROOMS_OF_EXTRAS = ("ray",)
_NAMES = {"AllReduceOptions": "tfdist.allreduce", "adopt": "tfdist.adoption", "create_strategy": "tfdist.strategies"}

# Without tfdist.input, because `from tfdist import *` would hide Python's input().
__all__ = ["__version__", "AllReduceOptions", "adopt", "create_strategy", *(room for room in _ROOMS if room != "input")]


def __getattr__(name: str) -> Any:
    if name in _ROOMS or name in _ROOMS_OF_EXTRAS:
        return importlib.import_module(f"tfdist.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS, *_ROOMS_OF_EXTRAS})
