"""Mends Keras 3's BackupAndRestore, which writes, repairs, reads and deletes the same folder on every worker.

Under MultiWorkerMirroredStrategy, a worker may look for the backup after another worker has deleted or replaced it. The
two workers then begin with different epochs, and wait for each other for ever. With the mend only the chief writes and
deletes the backup, and all workers begin with the backup that the chief has found.

Source: BackupAndRestore in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tfdist._log import get_logger
from tfdist.keras_compat.files.by_chief import follows, is_unaware_of_workers, strategy_of_workers
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.saving.scratch import replaced
from tfdist.workers import run_on_every_worker


def _defect_present() -> bool:
    from keras.src.callbacks import backup_and_restore

    return is_unaware_of_workers(backup_and_restore)


def _apply() -> None:
    from keras.src.callbacks import BackupAndRestore

    patch_method(BackupAndRestore, "on_train_begin", _begin_with_the_backup_of_the_chief)
    patch_method(BackupAndRestore, "_save_model", _save_on_the_chief)
    patch_method(BackupAndRestore, "on_train_end", _delete_on_the_chief)


def _begin_with_the_backup_of_the_chief(stock: Callable) -> Callable:
    def on_train_begin(self: Any, logs: Any = None) -> None:
        from keras.src.utils import file_utils

        strategy = strategy_of_workers(self.model)
        if strategy is None or not self.model.built:
            # If the model is not built, the stock method raises the same error on every worker.
            return stock(self, logs)
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            # The optimizer's variables have to be made by all workers together.
            optimizer.build(self.model.trainable_variables)
        what = f"find the backup in {self.backup_dir!r}"
        seen = run_on_every_worker(strategy, lambda: [int(file_utils.exists(self._weights_path))], width=1, to=what)
        if not seen[0][0]:
            return
        if (0,) in seen:
            raise OSError(
                f"expected every worker to {what}, as worker 0 does, received no backup on worker {seen.index((0,))}; "
                "set backup_dir to a folder that all workers share."
            )
        if not _load_together(self, strategy):
            what = f"restore the earlier backup in {self.backup_dir!r}"
            run_on_every_worker(strategy, lambda: _restore_the_earlier_backup(self), width=0, to=what)
            if not _load_together(self, strategy):
                raise OSError(
                    f"expected a readable backup in {self.backup_dir!r}, received two broken backups; delete the "
                    "folder."
                )

    return on_train_begin


def _load_together(callback: Any, strategy: Any) -> bool:
    """Loads the backup on all workers at once, as some variables require; returns whether every worker succeeded."""

    def load() -> Sequence[int]:
        try:
            callback._load_model()
        except OSError as error:
            get_logger().warning("cannot read the backup in %r: %s", callback.backup_dir, error)
            return 0, 0
        return 1, int(callback.model._initial_epoch or 0)

    what = f"read the backup in {callback.backup_dir!r}"
    rows = run_on_every_worker(strategy, load, width=2, to=what)
    for worker, (loaded, epoch) in enumerate(rows):
        if loaded and rows[0][0] and epoch != rows[0][1]:
            raise OSError(
                f"expected every worker to begin with epoch {rows[0][1]}, as worker 0 does, received epoch {epoch} on "
                f"worker {worker}; set backup_dir to a folder that all workers share."
            )
    return all(loaded for loaded, _ in rows)


def _restore_the_earlier_backup(callback: Any) -> Sequence[int]:
    from keras.src.utils import file_utils

    if follows(callback.model):
        return ()
    if not file_utils.exists(callback._prev_weights_path):
        raise OSError(
            f"expected a readable backup in {callback.backup_dir!r}, received a broken backup and no earlier "
            "backup; delete the folder, and set double_checkpoint=True to keep an earlier backup."
        )
    with replaced(callback._weights_path) as scratch:
        file_utils.copy(callback._prev_weights_path, scratch)
    metadata = callback._training_metadata_path
    if file_utils.exists(callback._prev_training_metadata_path):
        with replaced(metadata) as scratch:
            file_utils.copy(callback._prev_training_metadata_path, scratch)
    elif file_utils.exists(metadata):
        file_utils.remove(metadata)
    return ()


def _save_on_the_chief(stock: Callable) -> Callable:
    def save_model(self: Any) -> None:
        from keras.src.utils import file_utils

        strategy = strategy_of_workers(self.model)
        if strategy is None:
            return stock(self)
        paths = (self._weights_path, self._training_metadata_path)
        chief = not follows(self.model)

        def keep_the_earlier_backup() -> Sequence[int]:
            if chief and self.double_checkpoint:
                copies = (self._prev_weights_path, self._prev_training_metadata_path)
                for path, copy in zip(paths, copies, strict=True):
                    if file_utils.exists(path):
                        file_utils.copy(path, copy)
            return ()

        run_on_every_worker(strategy, keep_the_earlier_backup, width=0, to=f"keep the backup in {self.backup_dir!r}")
        self.model.save_weights(filepath=self._weights_path, overwrite=True)
        if chief:
            with replaced(self._training_metadata_path) as scratch, file_utils.File(scratch, "w") as file:
                file.write(json.dumps({"epoch": self._current_epoch, "batch": self._last_batch_seen}))

    return save_model


def _delete_on_the_chief(stock: Callable) -> Callable:
    def on_train_end(self: Any, logs: Any = None) -> Any:
        # The backup can be deleted, because every worker has read it before training began.
        return None if follows(self.model) else stock(self, logs)

    return on_train_end


MEND = Mend(
    name="backup_owned_by_no_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes, repairs and deletes the backup of BackupAndRestore, and workers may begin with "
    "different epochs: `fit` hangs",
    rows=("BackupAndRestore",),
)
