"""Mends Keras 3's build before training, which fails for a model whose train_step does not use its `call`.

Programs with several networks, such as a generator and a discriminator, often write a train_step and no `call`, or a
`call` that takes something else than a batch of the data. Without a strategy, Keras trains such a model. Under a
strategy it calls the model with a batch first, to create all variables outside of the replicas, and fails. With the
mend an error of this call is ignored if the model has a train_step or a test_step of its own, which then uses the model
as it does without a strategy. Variables that do not exist yet are created when the step uses them first.

Source: `Trainer._symbolic_build` in Keras 3's trainers/trainer.py. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.data.built_across_replicas import build_across_replicas
from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.trainers.trainer import Trainer

    return "NotImplementedError" not in Trainer._symbolic_build.__code__.co_names


def _has_own_step(model: Any) -> bool:
    from keras.src.models import Model

    return any(getattr(type(model), name) is not getattr(Model, name) for name in ("train_step", "test_step"))


def _without_call(stock: Callable) -> Callable:
    def symbolic_build(self: Any, *args: Any, **kwargs: Any) -> None:
        from keras.src.models import Model

        if type(self).call is Model.call:
            return
        # Metrics and losses that are built with the wrong output would keep its structure.
        parts = [part for part in (self._compile_metrics, self._compile_loss) if part is not None and not part.built]
        try:
            stock(self, *args, **kwargs)
        except Exception:
            if not _has_own_step(self):
                raise
            for part in parts:
                part.built = False

    return symbolic_build


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    patch_method(TensorFlowTrainer, "_symbolic_build", _without_call)
    build_across_replicas()


MEND = Mend(
    name="model_without_call",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`fit` of a model that has a train_step and no `call`, or a `call` that does not take the batch, fails "
    "under every strategy",
    rows=("two networks, two GradientTapes and two optimizers", "two networks with a gradient penalty"),
)
