"""The Keras in use, and the mends that have been applied. A mend is a patch of an upstream defect."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tfdist._needs_tensorflow  # noqa: F401
from tfdist.keras_compat.version import KerasInUse, keras_in_use

if TYPE_CHECKING:
    from tfdist.keras_compat.registry import applied_mends

__all__ = ["KerasInUse", "applied_mends", "keras_in_use"]

# Deprecated names, each with the module that defines the name now.
_MOVED = {"is_chief": "tfdist.workers", "save_model": "tfdist.saving"}


def __getattr__(name: str) -> Any:
    if name == "applied_mends":
        # Imported late, because the registry imports every mend, and each mend imports this package.
        from tfdist.keras_compat.registry import applied_mends

        return applied_mends
    if name in _MOVED:
        import importlib

        warnings.warn(
            f"tfdist.keras_compat.{name} is deprecated; use {_MOVED[name]}.{name}.", DeprecationWarning, stacklevel=2
        )
        return getattr(importlib.import_module(_MOVED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
