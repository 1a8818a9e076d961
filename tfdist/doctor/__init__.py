"""Checks what makes a training on several machines fail, before it does: `tfdist doctor`.

This package does not import TensorFlow.
"""

from __future__ import annotations

from tfdist.doctor.cli import main
from tfdist.doctor.finding import Finding

__all__ = ["Finding", "main"]
