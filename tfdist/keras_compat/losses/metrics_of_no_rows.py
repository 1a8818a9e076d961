"""Mends metrics of one's own that become NaN on a replica that has no rows.

A replica has no rows if the last batch has fewer rows than there are replicas. A metric that adds up means of batches
then adds a mean over no rows, which is NaN, and counts a batch that is none. With the mend the variables of such a
metric stay as they are on this replica, so that the result is that of the replicas that had rows. Keras's own metrics
add up rows, and no rows add nothing; of these only Sum needs the mend, for the sum of means.

A variable keeps its value where another one would be assigned to it. `update_state` itself is not skipped: variables
that it makes are made on all replicas, and a sum over replicas in it waits for no replica that skips it.

Source: Metric in Keras 3's metrics/metric.py and in Keras 2's metrics/base_metric.py; SyncOnReadVariable and
AggregatingVariable in TensorFlow's distribute package. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import GlobalBatch, current_batch
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.version import keras_in_use


def _adder() -> str:
    """Returns the name of the method with which a metric makes its variables."""
    return "add_variable" if keras_in_use().is_keras3 else "add_weight"


def _defect_present() -> bool:
    # Only these methods could ask for the number of rows: subclasses override update_state.
    metric = tf.keras.metrics.Metric
    return not any("rows" in inspect.getsource(getattr(metric, name)) for name in (_adder(), "__call__"))


def _is_own(metric: Any) -> bool:
    """Returns whether the program itself, or a package other than Keras, defines how a metric is updated."""
    owner = next(base for base in type(metric).__mro__ if "update_state" in vars(base))
    # "keras" or "tf_keras"; another package has another first name, such as keras_hub.
    return owner.__module__.split(".")[0] != tf.keras.metrics.Metric.__module__.split(".")[0]


def _marking(stock: Callable) -> Callable:
    def add_variable(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = stock(self, *args, **kwargs)
        made._tfdist_metric = "own" if _is_own(self) else "sum" if isinstance(self, tf.keras.metrics.Sum) else ""
        _mark(made)
        return made

    return add_variable


def _marked(stock: Callable) -> Callable:
    def initialize(self: Any, value: Any) -> None:
        stock(self, value)
        _mark(self)

    return initialize


def _mark(made: Any) -> None:
    """Marks the variable of TensorFlow, which Keras 3 may make only some time after its own variable."""
    variable = getattr(made, "_value", made)
    if isinstance(variable, _variable_classes()):
        variable._tfdist_metric = getattr(made, "_tfdist_metric", "")


def _variable_classes() -> tuple[Any, ...]:
    from tensorflow.python.distribute.ps_values import AggregatingVariable
    from tensorflow.python.distribute.values import SyncOnReadVariable

    return SyncOnReadVariable, AggregatingVariable


def _keeps_its_value(variable: Any, batch: GlobalBatch) -> bool:
    """Returns whether a variable has to keep its value if this replica has no rows."""
    if batch.static_rows or tf.distribute.in_cross_replica_context():
        return False
    # vars, because AggregatingVariable looks for other attributes in the variable that it wraps.
    metric = vars(variable).get("_tfdist_metric", "")
    # A loss that the program divides for all replicas has a part of a regularizer on a replica without rows, too. A Sum
    # adds up such parts.
    return metric == "own" or (metric == "sum" and batch.is_replica_mean)


def _with_rows(stock: Callable, otherwise: Callable[[Any], tf.Tensor]) -> Callable:
    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        batch = current_batch()
        if batch is not None and _keeps_its_value(self, batch):
            value = tf.where(batch.rows > 0, tf.convert_to_tensor(value, self.dtype), otherwise(self))
        return stock(self, value, *args, **kwargs)

    assign.__name__, assign.__doc__ = stock.__name__, stock.__doc__
    return assign


def _nothing(variable: Any) -> tf.Tensor:
    return tf.zeros([], variable.dtype)


def _apply() -> None:
    patch_method(tf.keras.metrics.Metric, _adder(), _marking)
    if keras_in_use().is_keras3:
        from keras.src.backend.tensorflow.core import Variable

        patch_method(Variable, "_initialize", _marked)
    for variable_class in _variable_classes():
        for name, otherwise in (("assign", tf.convert_to_tensor), ("assign_add", _nothing), ("assign_sub", _nothing)):
            setattr(variable_class, name, _with_rows(getattr(variable_class, name), otherwise))


MEND = Mend(
    name="metrics_of_no_rows",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3", "tf_keras", "keras2"),
    versions=((2, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="a metric of one's own that adds up means of batches is NaN, if a replica has no rows",
    without_row="a mean of the batches' means is another number if the batches are divided",
)
