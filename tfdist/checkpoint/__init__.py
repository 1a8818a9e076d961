"""Snapshots of a training in memory and on disk, from which the training goes on after an interruption."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.checkpoint.auto_resume import AutoResume
    from tfdist.checkpoint.following import Followed, SnapshotFollower, restore_model
    from tfdist.checkpoint.loop import ResumableLoop

__all__ = ["AutoResume", "Followed", "ResumableLoop", "SnapshotFollower", "restore_model"]

# Imported at the first use, because the tiers of snapshots need no TensorFlow.
_HOMES = {
    "AutoResume": "tfdist.checkpoint.auto_resume",
    "Followed": "tfdist.checkpoint.following",
    "ResumableLoop": "tfdist.checkpoint.loop",
    "SnapshotFollower": "tfdist.checkpoint.following",
    "restore_model": "tfdist.checkpoint.following",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        importlib.import_module("tfdist._needs_tensorflow")
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tfdist.checkpoint' has no attribute {name!r}")
