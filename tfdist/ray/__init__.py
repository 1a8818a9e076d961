"""Trains under Ray Train: Ray starts the workers and restarts them, and they run Keras 3 or tf_keras as it is.

Ray Train is installed with `pip install '.[ray]'` in a checkout of tfdist. This package imports no TensorFlow before a
train function does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import ray.train  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"expected Ray Train to be installed, received: {error}; run pip install '.[ray]' in a checkout of tfdist.",
        name=error.name,
    ) from None

from tfdist.ray.config import TfdistConfig
from tfdist.ray.trainer import TfdistTrainer

if TYPE_CHECKING:
    from tfdist.ray.report import ReportCallback

__all__ = ["ReportCallback", "TfdistConfig", "TfdistTrainer"]


def __getattr__(name: str) -> Any:
    # Imported at the first use, since it imports TensorFlow: a worker chooses its Keras before that.
    if name == "ReportCallback":
        return importlib.import_module("tfdist.ray.report").ReportCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
