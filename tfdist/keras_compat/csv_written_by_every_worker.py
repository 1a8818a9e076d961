"""Mends Keras 2's CSVLogger, which opens the same file on every worker under MultiWorkerMirroredStrategy.

Its other callbacks write on the chief alone. We know of no upstream issue.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from tfdist.keras_compat.chief_files import logged_by_chief
from tfdist.keras_compat.coordinated_model import patch_method
from tfdist.keras_compat.mends import Mend
from tfdist.keras_compat.which import keras_in_use


def _csv_logger() -> Any:
    return importlib.import_module(keras_in_use().engine.replace(".engine", ".callbacks")).CSVLogger


def _defect_present() -> bool:
    source = inspect.getsource(_csv_logger())
    return "should_checkpoint" not in source and "distributed_file_utils" not in source


def _apply() -> None:
    patch_method(_csv_logger(), "on_train_begin", logged_by_chief)


MEND = Mend(
    name="csv_written_by_every_worker",
    issue="not reported upstream",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
)
