"""Mends Keras 3's build before training, which fails for a model that has no `call`.

Programs with several networks, such as a generator and a discriminator, often write a train_step and no `call`. Without
a strategy, Keras trains such a model. Under a strategy it calls the model first, to create all variables outside of the
replicas, and fails. With the mend this call is omitted. If there are several replicas, a layer whose variables do not
exist yet is refused, because replicas cannot create them.

Source: `Trainer._symbolic_build` in Keras 3's trainers/trainer.py. No upstream issue is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.trainers.trainer import Trainer

    return "NotImplementedError" not in Trainer._symbolic_build.__code__.co_names


def refuse_unbuilt_layers(model: Any) -> None:
    """Raises ValueError if a layer within a model creates its variables only when it is called.

    Args:
        model: a Keras 3 model.
    """
    from keras.src.models import Model
    from keras.src.utils.python_utils import is_default

    for layer in model._flatten_layers(include_self=False):
        # The layers of an inner model are in the list themselves.
        if not layer.built and not isinstance(layer, Model) and not is_default(layer.build):
            raise ValueError(
                f"expected the layers of {type(model).__name__}, which has no call method, to be built before they are "
                f"trained on several replicas, received {layer.name} without variables; call its build method, or "
                "begin its Sequential model with an Input layer."
            )


def _without_call(stock: Callable) -> Callable:
    def symbolic_build(self: Any, *args: Any, **kwargs: Any) -> None:
        from keras.src.models import Model

        if type(self).call is not Model.call:
            stock(self, *args, **kwargs)
        elif self.distribute_strategy.num_replicas_in_sync > 1:
            refuse_unbuilt_layers(self)

    return symbolic_build


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    patch_method(TensorFlowTrainer, "_symbolic_build", _without_call)


MEND = Mend(
    name="model_without_call",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`fit` of a model that has a train_step and no `call` fails under every strategy",
    rows=("two networks, two GradientTapes and two optimizers", "two networks with a gradient penalty"),
)
