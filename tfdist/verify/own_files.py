"""Keeps a verified program from writing over the files of its trainings, and from going on from them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

# Classes of callbacks that write files or restore a training, of Keras and of tfdist. Names, because Keras 2 and Keras
# 3 have classes of their own.
_WRITING = {
    "AutoResume",
    "BackupAndRestore",
    "CSVLogger",
    "ModelCheckpoint",
    "OrbaxCheckpoint",
    "RemoteMonitor",
    "TensorBoard",
}


def without_files(callbacks: Any) -> list[Any]:
    """Returns the callbacks of `fit` as a list, without those that write files or restore a training.

    A run of the first steps would write over the log and the best model of a real training. A run that goes on from a
    snapshot, which may be that of the run before, has other weights than one that begins.

    Args:
        callbacks: what the program gives to `fit`: None, a callback, a list, or a CallbackList.
    """
    if callbacks is None:
        return []
    found = getattr(callbacks, "callbacks", callbacks)
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    return [one for one in found if not _WRITING & {kind.__name__ for kind in type(one).__mro__}]


def keep_snapshots_apart(folder: Path) -> None:
    """Makes every ResumableLoop of this process keep its snapshots in a folder of the run.

    Args:
        folder: the folder, which the workers of the run share.
    """
    from tfdist.checkpoint.loop import ResumableLoop

    make = ResumableLoop.__init__

    @functools.wraps(make)
    def init(loop: Any, directory: Any, *args: Any, **options: Any) -> None:
        make(loop, str(folder), *args, **{**options, "memory": False})

    loop_class: Any = ResumableLoop
    loop_class.__init__ = init
