"""ReportCallback: reports the metrics of each epoch, and checkpoints of the model, to Ray Train."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray.train

from tfdist.keras_compat.version import keras
from tfdist.saving import save_model
from tfdist.workers import is_chief

MODEL = "model.keras"
# Ray asks the workers for their reports every two seconds.
_COMMIT_SECONDS = 60.0


class ReportCallback(keras().callbacks.Callback):  # type: ignore[misc]
    """Reports the metrics of each epoch to Ray Train, with a checkpoint that has the model; every worker has to use it.

    The checkpoint is a folder with the file `model.keras`, which the chief writes. Ray's Result has only the metrics
    of reports with a checkpoint; its callbacks see all reports. A metric `epoch` counts the epochs from 1. After a
    restart, an epoch that ends again is reported again. A report with a checkpoint has arrived when the next epoch
    begins, so that no report is lost by a failure after a snapshot of AutoResume.

    Args:
        checkpoint_every_epochs: number of epochs between two checkpoints. The last epoch of fit always has one. None
            reports metrics without checkpoints.

    Raises:
        ValueError: if checkpoint_every_epochs is not a whole number above 0.

    Example:
        >>> from tfdist.ray import ReportCallback
        >>> callbacks = [ReportCallback(checkpoint_every_epochs=5)]
    """

    def __init__(self, *, checkpoint_every_epochs: int | None = 1) -> None:
        super().__init__()
        every = checkpoint_every_epochs
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ValueError(
                f"expected checkpoint_every_epochs to be a whole number above 0 or None, received {every!r}."
            )
        self._every = every

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Reports the epoch. Ray lets the workers wait for each other."""
        metrics = {"epoch": epoch + 1, **{name: _plain(value) for name, value in (logs or {}).items()}}
        if not self._is_due(epoch):
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="tfdist-ray-") as folder:
            save_model(self.model, os.path.join(folder, MODEL))
            chief = is_chief(self.model.distribute_strategy)
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder) if chief else None)
        # Ray drops reports that it has not asked for when a worker fails.
        ray.train.get_all_reported_checkpoints(
            consistency_mode=ray.train.CheckpointConsistencyMode.COMMITTED, timeout_s=_COMMIT_SECONDS
        )

    def _is_due(self, epoch: int) -> bool:
        if self._every is None:
            return False
        is_last = epoch + 1 == self.params.get("epochs") or self.model.stop_training
        return is_last or (epoch + 1) % self._every == 0


def _plain(value: Any) -> Any:
    """Returns a metric as a number, or as lists of numbers."""
    return np.asarray(value).tolist()
