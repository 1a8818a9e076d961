"""Mends Keras 3's CSVLogger and TensorBoard, which write the same files on every worker.

Under MultiWorkerMirroredStrategy the lines of a CSV file overwrite each other, and TensorBoard shows each number once
for every worker. With the mend only the chief writes. Neither callback waits for other workers, so that a program may
also pass the callbacks to the `fit` of the chief only.

Source: CSVLogger and TensorBoard in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.files.by_chief import follows, is_unaware_of_workers, logged_by_chief
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.callbacks import csv_logger, tensorboard

    return is_unaware_of_workers(csv_logger, tensorboard)


def _apply() -> None:
    from keras.src.callbacks import CSVLogger, TensorBoard

    patch_method(CSVLogger, "on_train_begin", logged_by_chief)
    patch_method(TensorBoard, "set_model", _write_to_temporary_folder_unless_chief)
    patch_method(TensorBoard, "on_train_end", _remove_temporary_folder)


def _write_to_temporary_folder_unless_chief(stock: Callable) -> Callable:
    def set_model(self: Any, model: Any) -> Any:
        if not follows(model):
            return stock(self, model)
        folder = tempfile.mkdtemp(prefix="tfdist-")
        # evaluate() does not call on_train_end. The folder is then removed when the callback is deleted.
        self._tfdist_remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        log_dir, self.log_dir = self.log_dir, folder
        try:
            return stock(self, model)
        finally:
            self.log_dir = log_dir

    return set_model


def _remove_temporary_folder(stock: Callable) -> Callable:
    def on_train_end(self: Any, logs: Any = None) -> Any:
        try:
            return stock(self, logs)
        finally:
            if follows(self.model):
                self._tfdist_remove_folder()

    return on_train_end


MEND = Mend(
    name="logs_written_by_every_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes the logs of CSVLogger and TensorBoard: lines of the CSV file "
    "overwrite each other, and TensorBoard shows each number several times",
    rows=("CSVLogger", "TensorBoard"),
)
