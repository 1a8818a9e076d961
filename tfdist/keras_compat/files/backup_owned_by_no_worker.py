"""Mends Keras 3's BackupAndRestore, which writes, repairs, reads and deletes the same folder on every worker.

Under MultiWorkerMirroredStrategy a worker that looks for the backup after another worker has deleted or replaced it
begins with another epoch, and then the workers wait for each other for ever. With the mend the chief owns the folder:
the chief alone writes and deletes, and all workers begin with the backup that the chief has found.

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

    patch_method(BackupAndRestore, "on_train_begin", _begin_with_what_the_chief_has_found)
    patch_method(BackupAndRestore, "_save_model", _save_on_the_chief)
    patch_method(BackupAndRestore, "on_train_end", _delete_on_the_chief)


def _begin_with_what_the_chief_has_found(stock: Callable) -> Callable:
    def on_train_begin(self: Any, logs: Any = None) -> None:
        from keras.src.utils import file_utils

        strategy = strategy_of_workers(self.model)
        if strategy is None or not self.model.built:
            # A model that is not built raises the same error on every worker.
            return stock(self, logs)
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built:
            # All workers make the optimizer's variables together.
            optimizer.build(self.model.trainable_variables)
        what = f"find the backup in {self.backup_dir!r}"
        seen = run_on_every_worker(strategy, lambda: [int(file_utils.exists(self._weights_path))], width=1, to=what)
        if not seen[0][0]:
            return
        if (0,) in seen:
            raise OSError(
                f"expected every worker to {what}, as worker 0 does, received no backup on worker {seen.index((0,))}; "
                "let backup_dir be a folder that all workers share."
            )
        if not _load_together(self, strategy):
            what = f"go back to the backup before in {self.backup_dir!r}"
            run_on_every_worker(strategy, lambda: _restore_the_one_before(self), width=0, to=what)
            if not _load_together(self, strategy):
                raise OSError(f"expected a backup that can be read in {self.backup_dir!r}, received none; delete it.")

    return on_train_begin


def _load_together(callback: Any, strategy: Any) -> bool:
    """Loads the backup on all workers at once, since some variables need it; returns whether every worker could."""

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
                f"expected every worker to begin with epoch {rows[0][1]} as worker 0 does, received epoch {epoch} on "
                f"worker {worker}; let backup_dir be a folder that all workers share."
            )
    return all(loaded for loaded, _ in rows)


def _restore_the_one_before(callback: Any) -> Sequence[int]:
    from keras.src.utils import file_utils

    if follows(callback.model):
        return ()
    if not file_utils.exists(callback._prev_weights_path):
        raise OSError(
            f"expected a backup that can be read in {callback.backup_dir!r}, received a broken one and none before it; "
            "delete it, and let double_checkpoint=True keep the one before."
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

        def keep_the_one_before() -> Sequence[int]:
            if chief and self.double_checkpoint:
                copies = (self._prev_weights_path, self._prev_training_metadata_path)
                for path, copy in zip(paths, copies, strict=True):
                    if file_utils.exists(path):
                        file_utils.copy(path, copy)
            return ()

        run_on_every_worker(strategy, keep_the_one_before, width=0, to=f"keep the backup in {self.backup_dir!r}")
        self.model.save_weights(filepath=self._weights_path, overwrite=True)
        if chief:
            with replaced(self._training_metadata_path) as scratch, file_utils.File(scratch, "w") as file:
                file.write(json.dumps({"epoch": self._current_epoch, "batch": self._last_batch_seen}))

    return save_model


def _delete_on_the_chief(stock: Callable) -> Callable:
    def on_train_end(self: Any, logs: Any = None) -> Any:
        # Every worker has read the backup before any worker began to train.
        return None if follows(self.model) else stock(self, logs)

    return on_train_end


MEND = Mend(
    name="backup_owned_by_no_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes, repairs and deletes the backup of BackupAndRestore, and begins with the epoch "
    "that it finds: `fit` hangs",
    rows=("BackupAndRestore",),
)
