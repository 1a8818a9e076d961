"""Tests the installed tfdist on the machines where it will train: `tfdist test`.

The command itself does not import TensorFlow; it starts processes that do.
"""

from __future__ import annotations

from tfdist.test.cli import main

__all__ = ["main"]
