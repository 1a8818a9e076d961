"""Mends Keras 2's saving, which writes the same file on every worker under MultiWorkerMirroredStrategy.

Keras 2's callbacks use temporary folders on the workers other than the chief. `Model.save`, `save_weights` and `export`
write to the given name on every worker. HDF5 files then cannot be locked, and the other workers wait for a worker that
has failed. With the mend every worker writes to a scratch name, and the chief's file is renamed to the given name.

Source: saving_lib and legacy.save in Keras 2. No upstream issue is known.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfdist.keras_compat.files.by_chief import exported_by_chief, is_unaware_of_workers, saved_by_chief
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import engine_module, keras_in_use


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
    patch_method(engine_module("training").Model, "export", exported_by_chief)


MEND = Mend(
    name="files_written_by_every_worker_keras2",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes the files of `save`, `save_weights` and `export`: HDF5 files are locked, and "
    "`save_weights` hangs",
    rows=(".keras file", "weights file", "model.export: one SavedModel"),
)
