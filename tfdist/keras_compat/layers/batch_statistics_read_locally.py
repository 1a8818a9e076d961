"""Mends Keras 2's evaluation, in which every replica normalizes by its own running statistics.

In cross-replica context, BatchNormalization's statistics are averaged over replicas when they are read or saved. But
evaluate and predict run on replicas, and each replica reads its own copy: with N replicas, N different models are
evaluated, and none of them is the saved model. With the mend, every replica gets the average before evaluation.

Source: BatchNormalization in Keras 2, whose statistics are ON_READ variables. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from typing import Any

from tfdist.keras_compat.layers.batch_statistics_stay_local import average_statistics, averaging_first
from tfdist.keras_compat.layers.statistics_of_an_empty_replica import base_class
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.version import engine_module


def _defect_present() -> bool:
    source = inspect.getsource(base_class())
    return "VariableSynchronization.ON_READ" in source and "assign(" not in inspect.getsource(
        engine_module("training").Model.make_test_function
    )


def _average(model: Any) -> None:
    average_statistics(model._flatten_layers(), base_class())


def _apply() -> None:
    model_class: Any = engine_module("training").Model
    for name in ("make_test_function", "make_predict_function"):
        setattr(model_class, name, averaging_first(getattr(model_class, name), _average))


MEND = Mend(
    name="batch_statistics_read_locally",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "tpu"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="running statistics of BatchNormalization are averaged when saved, but not when evaluated",
    rows=("BatchNormalization: running statistics averaged",),
)
