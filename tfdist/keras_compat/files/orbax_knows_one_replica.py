"""Mends Keras 3's OrbaxCheckpoint, which fails on several replicas and writes the same folder on every worker.

OrbaxCheckpoint calls int() with the optimizer's step counter, which fails for a variable on several replicas. With the
TensorFlow backend every worker regards itself as the primary host, so that all workers of a MultiWorkerMirroredStrategy
write and rename the same checkpoints. With the mend the counter is read with numpy(), and only the chief writes. The
other workers still read the variables, because some variables can be read only by all workers together.

Source: OrbaxCheckpoint.set_model, is_primary_host and _save_checkpoint in Keras 3. No upstream issue is known.
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

    # Since Keras 3.14 it begins with the optimizer's number of steps.
    if "set_model" in vars(OrbaxCheckpoint):
        patch_method(OrbaxCheckpoint, "set_model", _counting_on_replicas)
    patch_method(OrbaxCheckpoint, "_save_checkpoint", _written_by_the_chief)


def _counting_on_replicas(stock: Callable) -> Callable:
    def set_model(self: Any, model: Any) -> None:
        from keras.src.callbacks.callback import Callback

        Callback.set_model(self, model)
        if getattr(model, "optimizer", None) is not None:
            self._total_batches_seen = int(model.optimizer.iterations.numpy())

    return set_model


def _written_by_the_chief(stock: Callable) -> Callable:
    def save_checkpoint(self: Any, step: int, logs: Any = None) -> Any:
        from keras.src.callbacks import orbax_checkpoint

        if not follows(self.model):
            return stock(self, step, logs)
        # Some variables can be read only by all workers together, and the chief reads them now.
        orbax_checkpoint._get_state_tree(self.model)
        return None

    return save_checkpoint


MEND = Mend(
    name="orbax_knows_one_replica",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "tpu"),
    keras=("keras3",),
    versions=((3, 13), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="OrbaxCheckpoint fails on several replicas, and every worker writes its folder",
    rows=("OrbaxCheckpoint: the chief alone writes",),
)
