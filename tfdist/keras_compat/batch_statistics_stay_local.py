"""Mends Keras 3's BatchNormalization, whose running statistics each replica keeps to itself.

Its moving mean and variance are variables without aggregation: every replica updates its own copy, reading gives that
of the first replica, and workers end with different models. In Keras 2 they were averaged when read; here they are
again, and evaluation begins by giving every replica the average, so that it evaluates the model that would be saved.
Source: BatchNormalization.build in Keras 3 against the same in Keras 2.15, which passes ON_READ and MEAN; we know of no
upstream issue.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.mends import Mend

_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def _defect_present() -> bool:
    from keras.src.layers import BatchNormalization

    return "aggregation" not in inspect.getsource(BatchNormalization.build)


def average_statistics(model: Any) -> None:
    """Gives every replica the average of the replicas' running statistics.

    Args:
        model: a built Keras 3 model; to be called in cross-replica context, by every worker.
    """
    from keras.src.layers import BatchNormalization

    for layer in model._flatten_layers():
        if not isinstance(layer, BatchNormalization):
            continue
        for variable in layer.non_trainable_variables:
            value = variable._value
            if getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ:
                value.assign(tf.identity(value))


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.layers import BatchNormalization

    stock_add_weight = BatchNormalization.add_weight

    def add_weight(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") not in _STATISTICS or not tf.distribute.has_strategy():
            return stock_add_weight(self, *args, **kwargs)
        kwargs["aggregation"] = "mean"
        with tf.variable_creator_scope(_on_read):
            return stock_add_weight(self, *args, **kwargs)

    BatchNormalization.add_weight = add_weight
    for name in ("make_test_function", "make_predict_function"):
        setattr(TensorFlowTrainer, name, _averaging_first(getattr(TensorFlowTrainer, name)))


def _on_read(next_creator: Callable, **kwargs: Any) -> Any:
    return next_creator(**{**kwargs, "synchronization": tf.VariableSynchronization.ON_READ})


def _averaging_first(stock: Callable) -> Callable:
    def make_function(self: Any, force: bool = False) -> Any:
        if self._distribute_strategy is not None and self.built:
            with self._distribute_strategy.scope():
                average_statistics(self)
        return stock(self, force)

    make_function.__name__ = stock.__name__
    return make_function


MEND = Mend(
    name="batch_statistics_stay_local",
    issue="not reported upstream",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 15), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
)
