"""Mends Keras 2's Loss objects, which cannot be called in a train_step or a layer under a strategy.

Keras 2 asks for another reduction, because it would not know the number of rows of the global batch. If a strategy has
only one replica, this replica has all rows, so that with the mend the loss is the mean, as without a strategy. For
several replicas see loss_divided_by_replicas_keras2.

Source: Loss._get_reduction in Keras 2's losses.py. No upstream issue is known.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import engine_module, keras_in_use


def _loss_class() -> Any:
    root = keras_in_use().engine.rsplit(".", 1)[0]
    return importlib.import_module(f"{root}.losses").Loss


def _defect_present() -> bool:
    return "raise" in inspect.getsource(_loss_class()._get_reduction)


def _mean_on_one_replica(stock: Callable) -> Callable:
    compile_utils: Any = engine_module("compile_utils")
    reductions = compile_utils.losses_utils.ReductionV2

    def get_reduction(self: Any) -> Any:
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            return stock(self)
        return reductions.SUM_OVER_BATCH_SIZE if self.reduction == reductions.AUTO else self.reduction

    return get_reduction


def _apply() -> None:
    patch_method(_loss_class(), "_get_reduction", _mean_on_one_replica)


MEND = Mend(
    name="loss_called_on_one_replica",
    issue="not reported",
    strategies=("one_device", "mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a Loss object cannot be called in a `train_step` or a layer under a strategy",
    rows=("train_step that calls a Loss object", "add_loss of a Loss object that a layer calls"),
)
