"""Mends Keras 3's saving, which writes the same file on every worker under MultiWorkerMirroredStrategy.

The workers overwrite each other's files, HDF5 files cannot be locked, and ModelCheckpoint fails if another worker makes
the folder at the same moment. With the mend every worker writes to a scratch name, and the chief's file is renamed to
the given name. All means of saving call the patched functions: `Model.save`, `save_weights`, `export`, `keras.saving`,
ModelCheckpoint and BackupAndRestore.

Source: saving_lib in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.files.by_chief import (
    exported_by_chief,
    is_unaware_of_workers,
    saved_by_chief,
    strategy_of_workers,
)
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.saving import saving_api, saving_lib

    return is_unaware_of_workers(saving_api, saving_lib)


def _apply() -> None:
    from keras.src.callbacks import ModelCheckpoint
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.models.model import Model
    from keras.src.saving import saving_lib

    patch_method(saving_lib, "save_model", saved_by_chief)
    patch_method(saving_lib, "save_weights_only", saved_by_chief)
    patch_method(legacy_h5_format, "save_model_to_hdf5", saved_by_chief)
    patch_method(Model, "export", exported_by_chief)
    patch_method(ModelCheckpoint, "_save_model", _into_a_folder_that_may_exist)


def _into_a_folder_that_may_exist(stock: Callable) -> Callable:
    def save_model(self: Any, epoch: int, batch: Any, logs: Any) -> Any:
        folder = os.path.dirname(self._get_file_path(epoch, batch, logs))
        if folder and strategy_of_workers(self.model) is not None:
            tf.io.gfile.makedirs(folder)
        return stock(self, epoch, batch, logs)

    return save_model


MEND = Mend(
    name="files_written_by_every_worker_keras3",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes the files of `save`, `save_weights`, `export` and ModelCheckpoint: files are broken or "
    "locked, and a reader may see an incomplete file",
    rows=(
        ".keras file",
        "weights file",
        "model.export: one SavedModel",
        "ModelCheckpoint: one file, never half of one",
    ),
)
