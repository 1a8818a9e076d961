"""Mends Keras 3's fit, which begins with the epoch that an earlier fit of the same model was restored to.

BackupAndRestore sets `model._initial_epoch`, which overrides the argument `initial_epoch` and is never reset: the next
`fit` of the model skips its first epochs, or all epochs. The mend resets `model._initial_epoch` when `fit` begins,
before a callback restores a backup.

Source: TensorFlowTrainer.fit and BackupAndRestore in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import trainer_class


def _defect_present() -> bool:
    # Reads the source of the whole file, because another mend may have replaced the method.
    source = inspect.getsource(importlib.import_module(trainer_class().__module__))
    return "self._initial_epoch or initial_epoch" in source and "self._initial_epoch = " not in source


def _apply() -> None:
    patch_method(trainer_class(), "fit", _resetting_the_initial_epoch)


def _resetting_the_initial_epoch(stock: Callable) -> Callable:
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._initial_epoch = None
        return stock(self, *args, **kwargs)

    return fit


MEND = Mend(
    name="initial_epoch_outlives_fit",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="after a restore by BackupAndRestore, later calls of `fit` skip the epochs before the restored epoch",
    rows=("fit again after BackupAndRestore",),
)
