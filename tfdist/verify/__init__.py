"""Proves for a program that several replicas and workers compute the numbers of one device.

`tfdist verify -- python train.py` does it for a program, and tfdist.verify(model_fn, data) for a model.
"""

from __future__ import annotations

from tfdist.verify.cli import main

__all__ = ["main"]
