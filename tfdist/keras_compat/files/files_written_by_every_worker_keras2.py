"""Mends Keras 2's saving, which writes the same file on every worker under MultiWorkerMirroredStrategy.

Its callbacks send other workers than the chief to folders of their own; `Model.save` and `save_weights` do not, and
nothing is renamed into place. HDF5 files fail to be locked, and the worker that has failed leaves the others waiting.
We know of no upstream issue.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfdist.keras_compat.files.by_chief import is_unaware_of_workers, saved_by_chief
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import keras_in_use


def _saving_modules() -> tuple[Any, Any]:
    saving = keras_in_use().engine.replace(".engine", ".saving")
    return importlib.import_module(f"{saving}.saving_lib"), importlib.import_module(f"{saving}.legacy.save")


def _defect_present() -> bool:
    return is_unaware_of_workers(*_saving_modules())


def _apply() -> None:
    saving_lib, legacy = _saving_modules()
    patch_method(saving_lib, "save_model", saved_by_chief)
    patch_method(saving_lib, "save_weights_only", saved_by_chief)
    patch_method(legacy, "save_model", saved_by_chief)
    patch_method(legacy, "save_weights", saved_by_chief)


MEND = Mend(
    name="files_written_by_every_worker_keras2",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
)
