"""Mends Keras 3's BatchNormalization, whose running statistics are never averaged over replicas.

The moving mean and variance are variables without aggregation: every replica updates its own copy, a read returns the
copy of the first replica, and workers end with different models. Keras 2 averages the copies when the variables are
read. With the mend Keras 3 averages them too. Before evaluation every replica gets the average, so that the evaluated
model is the model that would be saved. A replica without rows keeps its statistics; in stock Keras 3 they become NaN,
because the mean of no rows is NaN.

Source: BatchNormalization.build in Keras 3. Keras 2.15 passes ON_READ and MEAN in the same method. No upstream issue is
known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _defect_present() -> bool:
    from keras.src.layers import BatchNormalization

    return "aggregation" not in inspect.getsource(BatchNormalization.build)


def average_statistics(layers: Iterable[Any], kind: Any) -> None:
    """Gives every replica the average of the replicas' running statistics.

    Args:
        layers: the layers of a built model. Every worker calls this, in cross-replica context.
        kind: the class of the layers that have statistics.
    """
    for layer in layers:
        if isinstance(layer, kind):
            for variable in layer.non_trainable_variables:
                value = getattr(variable, "_value", variable)
                if getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ:
                    value.assign(tf.identity(value))


def _average(model: Any) -> None:
    from keras.src.layers import BatchNormalization

    average_statistics(model._flatten_layers(), BatchNormalization)


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.layers import BatchNormalization

    stock_add_weight = BatchNormalization.add_weight

    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") not in _STATISTICS or not tf.distribute.has_strategy():
            return stock_add_weight(self, *args, **kwargs)
        kwargs["aggregation"] = "mean"
        with tf.variable_creator_scope(on_read):
            return stock_add_weight(self, *args, **kwargs)

    BatchNormalization.add_weight = add_weight
    BatchNormalization._moments = _moments_of_replicas(BatchNormalization._moments)
    for name in ("make_test_function", "make_predict_function"):
        setattr(TensorFlowTrainer, name, averaging_first(getattr(TensorFlowTrainer, name), _average))


def _moments_of_replicas(stock: Callable) -> Callable:
    def moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
        mean, variance = stock(self, inputs, mask)
        if self.synchronized or not on_several_replicas():
            return mean, variance
        has_rows = tf.shape(inputs)[0] > 0
        return (
            tf.where(has_rows, mean, tf.cast(self.moving_mean, mean.dtype)),
            tf.where(has_rows, variance, tf.cast(self.moving_variance, variance.dtype)),
        )

    return moments


def on_read(next_creator: Callable, **kwargs: Any) -> Any:
    """Creates a variable of which each replica has a copy of its own, for tf.variable_creator_scope.

    Args:
        next_creator: the next creator.
        **kwargs: the arguments of tf.Variable.
    """
    return next_creator(**{**kwargs, "synchronization": tf.VariableSynchronization.ON_READ})


def averaging_first(stock: Callable, average: Callable[[Any], None]) -> Callable:
    """Returns a method that averages a model's statistics over replicas and then calls `stock`.

    Args:
        stock: the method of the model's class that makes its test or predict function.
        average: gives every replica of a given model the average statistics.
    """

    def make_function(self: Any, force: bool = False) -> Any:
        if self.built and self.distribute_strategy.num_replicas_in_sync > 1:
            with self.distribute_strategy.scope():
                average(self)
        return stock(self, force)

    make_function.__name__ = stock.__name__
    return make_function


MEND = Mend(
    name="batch_statistics_stay_local",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="running statistics of BatchNormalization are not averaged over replicas, so that workers end with "
    "different models; on a replica without rows the statistics become NaN",
    rows=("BatchNormalization: running statistics averaged", "BatchNormalization where a replica gets no rows"),
)
