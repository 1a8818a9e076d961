"""Lets callbacks that write files go on with the files of an interrupted fit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from tfdist.keras_compat.resume.callbacks import LastCallback
from tfdist.keras_compat.version import keras


def position_of_file(callback: Any) -> int | None:
    """Returns how many bytes a CSVLogger has written; None for other callbacks, and for workers without the file.

    Args:
        callback: a callback of a fit.
    """
    if not isinstance(callback, keras().callbacks.CSVLogger) or getattr(callback, "csv_file", None) is None:
        return None
    # Keras closes the file at the end of the training.
    with contextlib.suppress(ValueError):
        callback.csv_file.flush()
    return os.path.getsize(callback.filename) if os.path.exists(callback.filename) else None


def go_on_with_file(callback: Any, position: int | None) -> None:
    """Makes a CSVLogger go on with its file, without what it wrote after the snapshot; called before it begins.

    Args:
        callback: a callback of a fit.
        position: what position_of_file has returned.
    """
    if position is None or not isinstance(callback, keras().callbacks.CSVLogger):
        return
    callback.append = True
    if os.path.exists(callback.filename) and os.path.getsize(callback.filename) > position:
        os.truncate(callback.filename, position)


def refuse_other_resumers(callbacks: Sequence[Any]) -> None:
    """Raises an error if another callback restores the fit, too.

    Args:
        callbacks: the callbacks of a fit.

    Raises:
        ValueError: if there is one.
    """
    for callback in callbacks:
        if isinstance(callback, LastCallback):
            raise ValueError(
                "expected one AutoResume in the callbacks of a fit, received several; keep one of them, since each "
                "restores the whole fit."
            )
        if isinstance(callback, keras().callbacks.BackupAndRestore):
            raise ValueError(
                "expected no BackupAndRestore beside AutoResume, received both; leave BackupAndRestore out, since "
                "AutoResume restores everything that it restores."
            )
