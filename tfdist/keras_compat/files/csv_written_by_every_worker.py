"""Mends Keras 2's CSVLogger, which opens the same file on every worker under MultiWorkerMirroredStrategy.

With the mend only the chief writes the file, as with Keras 2's other callbacks.

Source: CSVLogger in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfdist.keras_compat.files.by_chief import is_unaware_of_workers, logged_by_chief
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import keras_in_use


def _csv_logger() -> Any:
    return importlib.import_module(keras_in_use().engine.replace(".engine", ".callbacks")).CSVLogger


def _defect_present() -> bool:
    return is_unaware_of_workers(_csv_logger())


def _apply() -> None:
    patch_method(_csv_logger(), "on_train_begin", logged_by_chief)


MEND = Mend(
    name="csv_written_by_every_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes the file of CSVLogger: lines overwrite each other",
    rows=("CSVLogger",),
)
