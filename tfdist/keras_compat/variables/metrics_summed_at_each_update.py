"""Mends Keras 3.8's and 3.9's metrics, whose totals are summed over replicas at each update.

A metric updates a total by reading and assigning it. The variable of the total has the aggregation "sum", so that
TensorFlow assigns the sum of the replicas' new totals, and with N replicas the old total is counted N times. With the
mend each replica has a total of its own, and a read returns the sum of the totals, as in later releases of Keras.

Source: Metric.add_variable in Keras 3, which passes synchronization="on_read" since Keras 3.10.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.layers.batch_statistics_stay_local import on_read
from tfdist.keras_compat.losses.global_batch import temporarily
from tfdist.keras_compat.mend import Mend, patch_method

_local = threading.local()


def _defect_present() -> bool:
    from keras.src.metrics import Metric

    return "synchronization" not in inspect.getsource(Metric.add_variable)


def _marking(stock: Callable) -> Callable:
    def add_variable(self: Any, *args: Any, **kwargs: Any) -> Any:
        with temporarily(_local, is_metric=True):
            return stock(self, *args, **kwargs)

    return add_variable


def _marked(stock: Callable) -> Callable:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        # Keras may make the variable of TensorFlow only later.
        self._tfdist_is_of_metric = getattr(_local, "is_metric", None) or False
        stock(self, *args, **kwargs)

    return __init__


def _of_each_replica(stock: Callable) -> Callable:
    def initialize(self: Any, value: Any) -> None:
        is_of_metric = self._tfdist_is_of_metric and tf.distribute.has_strategy()
        with tf.variable_creator_scope(on_read) if is_of_metric else contextlib.nullcontext():
            stock(self, value)

    return initialize


def _apply() -> None:
    from keras.src.backend.tensorflow.core import Variable
    from keras.src.metrics import Metric

    patch_method(Metric, "add_variable", _marking)
    patch_method(Variable, "__init__", _marked)
    patch_method(Variable, "_initialize", _of_each_replica)
    # Variables that were made before the first strategy.
    Variable._tfdist_is_of_metric = False


MEND = Mend(
    name="metrics_summed_at_each_update",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "parameter_server", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 9)),
    defect_present=_defect_present,
    apply=_apply,
    defect="the totals of metrics are summed over replicas at each update: losses and metrics are wrong",
    rows=("tf.data, finite", "AUC, Recall and other metrics with state"),
)
