"""Prints what a report of a defect needs: `tfdist env`.

The command itself does not import TensorFlow; it asks a process that does.
"""

from __future__ import annotations

from tfdist.env.cli import main

__all__ = ["main"]
