"""Mends Keras 3's OrbaxCheckpoint, which writes the same folder on every worker.

With the TensorFlow backend every worker takes itself for the primary host. Under MultiWorkerMirroredStrategy all of
them write and rename the same steps. With the mend every worker reads the variables, which some of them need all
workers for, and the chief alone writes.

Source: OrbaxCheckpoint.is_primary_host and _save_checkpoint in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.files.by_chief import follows
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.callbacks import OrbaxCheckpoint

    return "distribute_strategy" not in inspect.getsource(OrbaxCheckpoint)


def _apply() -> None:
    from keras.src.callbacks import OrbaxCheckpoint

    patch_method(OrbaxCheckpoint, "_save_checkpoint", _written_by_the_chief)


def _written_by_the_chief(stock: Callable) -> Callable:
    def save_checkpoint(self: Any, step: int, logs: Any = None) -> Any:
        from keras.src.callbacks import orbax_checkpoint

        if not follows(self.model):
            return stock(self, step, logs)
        # The chief reads the same variables at the same time.
        orbax_checkpoint._get_state_tree(self.model)
        return None

    return save_checkpoint


MEND = Mend(
    name="orbax_written_by_every_worker",
    issue="not reported",
    strategies=("multi_worker_mirrored",),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="every worker writes the folder of OrbaxCheckpoint",
    rows=("OrbaxCheckpoint: the chief alone writes",),
)
