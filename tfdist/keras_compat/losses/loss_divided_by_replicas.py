"""Mends Keras 3's losses, which give every replica the same weight, whatever its number of rows.

Stock Keras multiplies the mean over a replica's rows by 1 / number of replicas wherever a Loss object is called, and
sums gradients over replicas. The sum is the gradient of the mean over the global batch only if all replicas have
equally many rows, equally many unmasked steps, and weights of the same sum; and a mean that the program computes itself
is not divided at all.

With the mend a loss is the mean over the replica's rows, and gradients are weighted by rows when they are summed (see
rule.py). A loss with another divisor than the number of rows is multiplied by the quotient of the two shares, so that
the weighted mean over replicas is the loss of a single device. A program that divides for itself ("global_sum") gets
the parts whose sum is that loss.

Source: `scale_loss_for_distribution` in Keras 3's losses/loss.py. No upstream issue is known.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.division import is_part, watch_divisions
from tfdist.keras_compat.losses.first_axis import depends_on_batch
from tfdist.keras_compat.losses.global_batch import (
    GlobalBatch,
    current_batch,
    fraction,
    global_batch,
    sum_over_replicas,
    temporarily,
)
from tfdist.keras_compat.losses.gradients_across_replicas import weight_gradients_across_replicas
from tfdist.keras_compat.losses.means_over_rows import is_mean_over_rows
from tfdist.keras_compat.losses.rule import rule_for
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch, with_noted_outputs
from tfdist.keras_compat.losses.sums_over_rows import part_of_sum
from tfdist.keras_compat.losses.sums_taken_as_means import notice_sums
from tfdist.keras_compat.mend import Mend, patch_method

_local = threading.local()


def _defect_present() -> bool:
    from keras.src.losses import loss

    return "1.0 / num_replicas" in inspect.getsource(loss.scale_loss_for_distribution)


def _scale(stock: Callable) -> Callable:
    def scale_loss_for_distribution(value: Any) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(value)
        divisor = getattr(_local, "divisor", None)
        if batch.is_replica_mean:
            return value if divisor is None else value * _relative(divisor, batch, value.dtype)
        part = value * (batch.share(value.dtype) if divisor is None else fraction(divisor[0], divisor[1], value.dtype))
        batch.parts.append(part)
        return part

    return scale_loss_for_distribution


def _relative(divisor: tuple[tf.Tensor, tf.Tensor], batch: GlobalBatch, dtype: Any) -> tf.Tensor:
    """Returns the replica's share of the divisor, divided by its share of the rows."""
    return tf.math.divide_no_nan(fraction(divisor[0], divisor[1], dtype), batch.share(dtype))


def _unscale(stock: Callable) -> Callable:
    def unscale_loss_for_distribution(value: Any) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(value)
        return value if batch.is_replica_mean else tf.math.divide_no_nan(value, batch.share(value.dtype))

    return unscale_loss_for_distribution


def _reduce(module: Any) -> Callable:
    stock = module.reduce_weighted_values
    # Until Keras 3.12 the mean over the valid steps has a divisor that is larger by epsilon.
    has_epsilon = "epsilon()" in inspect.getsource(module.apply_mask)

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        def call() -> Any:
            loss = stock(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
            if batch is not None and not sums:
                # Keras does not reduce a vector that is known to have no entries.
                loss = tf.reduce_sum(loss) if reduction not in (None, "none") and loss.shape == [0] else loss
                batch.means.append(loss)
            return loss

        batch = current_batch()
        sums = reduction == "sum" and (batch is None or _are_of_rows(values, batch))
        if batch is None:
            return call()
        if sums and batch.is_mean_by_weights(sample_weight):
            sums = False
            return call()
        exact_value = value_of_global_batch(values, batch)
        if exact_value is not None:
            values, sums = exact_value, False
            return call()
        if sums:
            return global_sum(call(), batch)
        notice_sums([values], batch)
        # The weights of a function's own mean, which are all the same, are no weights.
        if is_mean_over_rows(values, batch):
            return call()
        exact = tf.float64 if tf.as_dtype(dtype or values.dtype) == tf.float64 else tf.float32
        added = 0.0
        if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
            divisor = tf.reduce_sum(module.apply_mask(sample_weight, mask, dtype=exact, reduction=reduction))
        elif mask is not None and reduction in ("mean", "sum_over_batch_size"):
            divisor = tf.reduce_sum(tf.cast(mask, exact))
            added = tf.keras.config.epsilon() if has_epsilon else 0.0
        else:
            return call()
        with temporarily(_local, divisor=(divisor + added, sum_over_replicas(divisor) + added)):
            return call()

    return reduce_weighted_values


def _are_of_rows(values: Any, batch: GlobalBatch) -> bool:
    """Returns whether values that are added up come from rows, so that the replicas' sums are added up, too.

    A scalar may be the mean over the rows, and values that are computed from weights alone are those of every replica.
    """
    if values.shape.rank == 0:
        return not is_mean_over_rows(values, batch)
    return not hasattr(values, "graph") or depends_on_batch(values)


def global_sum(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns a loss that is a sum over rows in the form that the rule expects, if it was reduced at all.

    Args:
        value: the loss of this replica.
        batch: the global batch of the step.
    """
    if value.shape.rank != 0:
        return value
    if batch.is_replica_mean:
        return batch.mean_of_sum(value)
    batch.parts.append(value)
    return value


def _aggregate(stock: Callable) -> Callable:
    def aggregate_additional_loss(self: Any, loss: Any) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(self, loss)
        if not batch.is_replica_mean and is_part(loss, batch):
            # A Loss object in a layer has divided this loss already.
            return tf.reduce_sum(loss)
        if loss.shape.rank:
            # Keras adds up the entries of a loss, for example one for each row.
            return global_sum(part_of_sum(loss, batch), batch)
        exact = value_of_global_batch(loss, batch)
        if exact is not None:
            return stock(self, exact)
        notice_sums([loss], batch)
        return stock(self, loss)

    return aggregate_additional_loss


def _with_global_batch(stock: Callable) -> Callable:
    def make_function(self: Any, step_function: Callable) -> Any:
        # On other strategies the step function of steps_fail_in_a_loop knows the global batch.
        if not isinstance(self._distribute_strategy, tf.distribute.TPUStrategy):
            return stock(self, step_function)
        rule = rule_for(self, step_function.__name__)

        @functools.wraps(step_function)
        def step(data: Any) -> Any:
            with global_batch(data, rule):
                logs = step_function(data)
            rule.refuse_change()
            return logs

        return stock(self, step)

    return make_function


def _apply() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.losses import loss

    patch_method(tf.keras.layers.Layer, "__call__", with_noted_outputs)
    loss.reduce_weighted_values = _reduce(loss)
    loss.scale_loss_for_distribution = _scale(loss.scale_loss_for_distribution)
    loss.unscale_loss_for_distribution = _unscale(loss.unscale_loss_for_distribution)
    TensorFlowTrainer._aggregate_additional_loss = _aggregate(TensorFlowTrainer._aggregate_additional_loss)
    TensorFlowTrainer._make_function = _with_global_batch(TensorFlowTrainer._make_function)
    watch_divisions()
    weight_gradients_across_replicas()


MEND = Mend(
    name="loss_divided_by_replicas",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("keras3",),
    versions=((3, 8), (3, 15)),
    defect_present=_defect_present,
    apply=_apply,
    defect="losses give every replica the same weight, whatever its number of rows, its unmasked steps and its sample "
    "weights: the loss of an uneven batch is wrong",
    rows=(
        "last batch smaller than the rest",
        "last batch of 3 rows",
        "last batch of 1 row: replicas that get none",
        "smaller last batch, regularizers and several outputs",
        "masked loss, other numbers of valid steps on each replica",
        "sample_weight, loss divided by its sum",
    ),
)
