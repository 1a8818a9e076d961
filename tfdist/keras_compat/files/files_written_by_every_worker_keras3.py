"""Mends Keras 3's saving, which knows nothing of workers: under MultiWorkerMirroredStrategy all write the same file.

Half of one worker's file is overwritten by the other's, HDF5 files fail to be locked, and the folder that
ModelCheckpoint makes may have been made by another worker in between. The functions below are those that every way of
saving passes through: `Model.save`, `save_weights`, `keras.saving`, ModelCheckpoint, BackupAndRestore. We know of no
upstream issue.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.files.by_chief import is_unaware_of_workers, saved_by_chief, strategy_of_workers
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.saving import saving_api, saving_lib

    return is_unaware_of_workers(saving_api, saving_lib)


def _apply() -> None:
    from keras.src.callbacks import ModelCheckpoint
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.saving import saving_lib

    patch_method(saving_lib, "save_model", saved_by_chief)
    patch_method(saving_lib, "save_weights_only", saved_by_chief)
    patch_method(legacy_h5_format, "save_model_to_hdf5", saved_by_chief)
    patch_method(ModelCheckpoint, "_save_model", _into_a_folder_that_may_be_there)


def _into_a_folder_that_may_be_there(stock: Callable) -> Callable:
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
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
