"""Mends predict_on_batch of Keras 3, which returns the predictions of a batch once for each replica.

Stock Keras 3 gives the whole batch to every replica and concatenates the results. The mend returns the predictions of
the first replica.

Source: TensorFlowTrainer.predict_on_batch in Keras 3. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method


def _defect_present() -> bool:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    return "predict_function([(x,)])" in inspect.getsource(TensorFlowTrainer.predict_on_batch)


def _of_first_replica(stock: Callable) -> Callable:
    def predict_on_batch(self: Any, x: Any) -> Any:
        replicas = self.distribute_strategy.num_replicas_in_sync
        return tf.nest.map_structure(lambda values: values[: values.shape[0] // replicas], stock(self, x))

    return predict_on_batch


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    patch_method(TensorFlowTrainer, "predict_on_batch", _of_first_replica)


MEND = Mend(
    name="predictions_repeated_by_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="`predict_on_batch` returns the predictions of a batch once for each replica",
    rows=("train_on_batch, test_on_batch, predict_on_batch, own train_step",),
)
