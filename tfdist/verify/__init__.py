"""Proves for a program that several replicas and workers compute the numbers of one device.

`tfdist verify -- python train.py` does it for a program, and tfdist.verify(model_fn, data) for a model. This module can
be called: tfdist.verify(...) is tfdist.verify.verify(...).
"""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from tfdist.verify.cli import main
from tfdist.verify.model import verify
from tfdist.verify.verification import Verification

__all__ = ["Verification", "main", "verify"]


class _CallableModule(types.ModuleType):
    """A module whose call is that of its function `verify`."""

    __signature__ = inspect.signature(verify)

    def __call__(self, *args: Any, **kwargs: Any) -> Verification:
        return verify(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
