"""Mends Keras 2's losses, which give every replica the same weight, whatever its number of rows.

As in Keras 3 (see loss_divided_by_replicas), stock Keras multiplies compiled losses by 1 / number of replicas, does not
divide what a train_step computes itself, and sums gradients over replicas. With the mend a loss is the mean over the
replica's rows, and gradients are weighted by rows when they are summed (see rule.py). Loss objects can be called in a
train_step, which stock Keras refuses under a strategy.

Source: LossesContainer in Keras 2's engine/compile_utils.py, Loss in losses.py, all_reduce_sum_gradients in
optimizers/utils.py. No upstream issue is known.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.allreduce.equal_slices import add_up_equal_slices
from tfdist.keras_compat.losses.division import watch_divisions
from tfdist.keras_compat.losses.driven_steps_keras2 import drive_steps
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
from tfdist.keras_compat.losses.rule import StepRule
from tfdist.keras_compat.losses.sums_in_steps import value_of_global_batch, with_noted_outputs
from tfdist.keras_compat.losses.sums_taken_as_means import notice_sums
from tfdist.keras_compat.losses.weighting import weighted_gradients
from tfdist.keras_compat.mend import Mend, patch_method
from tfdist.keras_compat.replicas import on_several_replicas
from tfdist.keras_compat.version import engine_module, keras_in_use

# Whether the value of the loss that is called is that of the global batch.
_local = threading.local()


def _defect_present() -> bool:
    losses_utils = engine_module("compile_utils").losses_utils
    return "1.0 / num_replicas" in inspect.getsource(losses_utils.scale_loss_for_distribution)


def _loss_of_container(stock: Callable) -> Callable:
    compile_utils: Any = engine_module("compile_utils")
    losses_utils = compile_utils.losses_utils
    reductions = losses_utils.ReductionV2
    allowed = (reductions.AUTO, reductions.SUM_OVER_BATCH_SIZE, reductions.SUM)

    def loss(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None) -> Any:
        if not self._built:
            self.build(y_pred)
        used = [one for one in tf.nest.flatten(self._losses) if one is not None]
        if not on_several_replicas() or any(one.reduction not in allowed for one in used):
            return stock(self, y_true, y_pred, sample_weight, regularization_losses)
        flat = tf.nest.flatten(y_pred)
        targets, weights = (
            tf.nest.flatten(self._conform_to_outputs(y_pred, value)) for value in (y_true, sample_weight)
        )
        columns = zip(targets, flat, weights, self._losses, self._loss_weights, self._per_output_metrics, strict=True)
        with _batch_of([target for target in targets if target is not None] or flat) as batch:
            means, parts, rows = [], [], None
            for target, output, weight, one, factor, metric in columns:
                if target is None or one is None:
                    continue
                target, output, weight = compile_utils.match_dtype_and_rank(target, output, weight)
                weight = losses_utils.apply_mask(output, weight, losses_utils.get_mask(output))
                value = one(target, output, sample_weight=weight)
                mean, part = _mean_and_part(value, batch, is_sum=one.reduction == reductions.SUM)
                # Keras counts the rows of the first target. In transformers this is the model's loss, of shape (1,).
                if rows is None:
                    rows = batch.share() if target.shape.rank and target.shape[0] == 1 else batch.rows
                if metric is not None:
                    metric.update_state(mean, sample_weight=rows)
                means.append(mean if factor is None else mean * factor)
                parts.append(part if factor is None else part * factor)
            compiled = bool(parts)
            if regularization_losses:
                exact = [value_of_global_batch(one, batch) for one in regularization_losses]
                notice_sums([one for one, own in zip(regularization_losses, exact, strict=True) if own is None], batch)
                regularization_losses = [
                    one if own is None else own for one, own in zip(regularization_losses, exact, strict=True)
                ]
                regularization = tf.add_n(losses_utils.cast_losses_to_common_dtype(regularization_losses))
                mean, part = _mean_and_part(regularization, batch, is_sum=False)
                means.append(mean)
                parts.append(part)
            if not parts:
                return None
            total = tf.add_n(losses_utils.cast_losses_to_common_dtype(means))
            # As on one device, a batch has the weight of its rows only if there is a compiled loss.
            self._total_loss_mean.update_state(total, sample_weight=rows if compiled else None)
            if batch.is_replica_mean:
                return total
            batch.parts.append(tf.add_n(losses_utils.cast_losses_to_common_dtype(parts)))
            return batch.parts[-1]

    return loss


def _batch_of(data: Any) -> contextlib.AbstractContextManager[GlobalBatch]:
    """Returns a context with the global batch of the step; in a loop of one's own, that of the data."""
    batch = current_batch()
    if batch is not None:
        return contextlib.nullcontext(batch)
    # TensorFlow's rule for such loops: gradients are summed, and compiled losses are parts.
    return global_batch(data, StepRule("global_sum", "the loop"))


def _mean_and_part(value: tf.Tensor, batch: GlobalBatch, *, is_sum: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a loss as the mean over the replica's rows, and as the part that all replicas add up."""
    share = batch.share(value.dtype)
    if is_sum and not batch.is_replica_mean:
        return tf.math.divide_no_nan(value, share), value
    return value, value * share


def _apply_valid_mask(stock: Callable) -> Callable:
    def apply_valid_mask(losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        batch = current_batch()
        weights = stock(losses, sw, mask, reduction)
        if mask is None or batch is None or reduction not in ("auto", "sum_over_batch_size"):
            return weights
        # The mask of a function's own mean cancels out.
        if value_of_global_batch(losses, batch) is not None or is_mean_over_rows(losses, batch):
            return weights
        # The loss is weighted by the replica's share of the rows. The correct weight is the replica's share of the
        # unmasked entries, so that the weights are multiplied by the quotient of the two shares.
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        share = fraction(valid, sum_over_replicas(valid), weights.dtype)
        return tf.math.multiply_no_nan(weights, tf.math.divide_no_nan(share, batch.share(weights.dtype)))

    return apply_valid_mask


def _compute_weighted_loss(stock: Callable) -> Callable:
    @functools.wraps(stock)
    def compute_weighted_loss(losses: Any, *args: Any, **kwargs: Any) -> Any:
        batch = current_batch()
        exact = None if batch is None else value_of_global_batch(losses, batch)
        _local.is_exact = exact is not None
        return stock(losses if exact is None else exact, *args, **kwargs)

    return compute_weighted_loss


def _get_reduction(stock: Callable, reductions: Any) -> Callable:
    def get_reduction(self: Any) -> Any:
        batch = current_batch()
        # A functional model is built in cross-replica context, which calls the losses of its layers.
        builds = batch is None and tf.distribute.in_cross_replica_context()
        if not builds and (batch is None or not batch.is_replica_mean):
            return stock(self)
        return reductions.SUM_OVER_BATCH_SIZE if self.reduction == reductions.AUTO else self.reduction

    return get_reduction


def _call_of_loss(stock: Callable, reductions: Any) -> Callable:
    def call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with temporarily(_local, is_exact=False):
            value = stock(self, y_true, y_pred, sample_weight)
            is_exact = _local.is_exact
        batch = current_batch()
        if batch is None or self.reduction == reductions.NONE or not batch.is_replica_mean:
            return value
        is_sum = self.reduction == reductions.SUM and not is_exact
        if is_sum and not batch.is_mean_by_weights(sample_weight):
            return batch.mean_of_sum(value)
        notice_sums([value], batch)
        batch.means.append(value)
        return value

    return call


def _scale(stock: Callable) -> Callable:
    def scale_loss_for_distribution(value: Any) -> Any:
        batch = current_batch()
        if batch is None:
            return stock(value)
        return value if batch.is_replica_mean else value * batch.share(value.dtype)

    return scale_loss_for_distribution


def _summed_by_rows(stock: Callable) -> Callable:
    def all_reduce_sum_gradients(grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        weighted = weighted_gradients([gradient for gradient, _ in pairs])
        sums = stock([(gradient, variable) for gradient, (_, variable) in zip(weighted, pairs, strict=True)])
        return [
            (add_up_equal_slices(own, total) if isinstance(total, tf.IndexedSlices) else total, variable)
            for own, (total, variable) in zip(weighted, sums, strict=True)
        ]

    return all_reduce_sum_gradients


def _apply() -> None:
    compile_utils: Any = engine_module("compile_utils")
    losses_utils = compile_utils.losses_utils
    root = keras_in_use().engine.rsplit(".", 1)[0]
    utils: Any = importlib.import_module(f"{root}.optimizers.utils")
    loss: Any = importlib.import_module(f"{root}.losses").Loss
    losses_utils.apply_valid_mask = _apply_valid_mask(losses_utils.apply_valid_mask)
    losses_utils.scale_loss_for_distribution = _scale(losses_utils.scale_loss_for_distribution)
    losses_utils.compute_weighted_loss = _compute_weighted_loss(losses_utils.compute_weighted_loss)
    loss._get_reduction = _get_reduction(loss._get_reduction, losses_utils.ReductionV2)
    loss.__call__ = _call_of_loss(loss.__call__, losses_utils.ReductionV2)
    compile_utils.LossesContainer.__call__ = _loss_of_container(compile_utils.LossesContainer.__call__)
    utils.all_reduce_sum_gradients = _summed_by_rows(utils.all_reduce_sum_gradients)
    patch_method(tf.keras.layers.Layer, "__call__", with_noted_outputs)
    drive_steps(engine_module("training").Model)
    watch_divisions()
    weight_gradients_across_replicas()


MEND = Mend(
    name="loss_divided_by_replicas_keras2",
    issue="not reported",
    strategies=("mirrored", "multi_worker_mirrored", "central_storage", "tpu"),
    keras=("tf_keras", "keras2"),
    versions=((2, 15), (2, 21)),
    defect_present=_defect_present,
    apply=_apply,
    defect="losses give every replica the same weight, whatever its number of rows and unmasked steps: the loss of an "
    "uneven batch is wrong",
    rows=(
        "last batch smaller than the rest",
        "last batch of 3 rows",
        "last batch of 1 row: replicas that get none",
        "smaller last batch, regularizers and several outputs",
        "masked loss, other numbers of valid steps on each replica",
    ),
)
