"""Mends Keras 2's losses, which give every replica the same weight, whatever its number of rows.

As in Keras 3 (see loss_divided_by_replicas), stock Keras multiplies the mean over a replica's rows by 1 / number of
replicas. The sum over replicas is the mean over the global batch only if all replicas have equally many rows and
equally many unmasked steps. The mend multiplies the mean by the replica's share of the divisor that a single device
would use.

Source: LossesContainer in Keras 2's engine/compile_utils.py. No upstream issue is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import current_batch, global_batch, sum_over_replicas
from tfdist.keras_compat.mend import Mend
from tfdist.keras_compat.replicas import on_several_replicas
from tfdist.keras_compat.version import engine_module


def _defect_present() -> bool:
    losses_utils = engine_module("compile_utils").losses_utils
    return "1.0 / num_replicas" in inspect.getsource(losses_utils.scale_loss_for_distribution)


def _loss_of_container(stock: Callable) -> Callable:
    compile_utils: Any = engine_module("compile_utils")
    losses_utils = compile_utils.losses_utils
    reductions = losses_utils.ReductionV2
    means = (reductions.AUTO, reductions.SUM_OVER_BATCH_SIZE)

    def loss(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None) -> Any:
        if not self._built:
            self.build(y_pred)
        used = [one for one in tf.nest.flatten(self._losses) if one is not None]
        if not on_several_replicas() or any(one.reduction not in (*means, reductions.SUM) for one in used):
            return stock(self, y_true, y_pred, sample_weight, regularization_losses)
        flat = tf.nest.flatten(y_pred)
        targets, weights = (
            tf.nest.flatten(self._conform_to_outputs(y_pred, value)) for value in (y_true, sample_weight)
        )
        columns = zip(targets, flat, weights, self._losses, self._loss_weights, self._per_output_metrics, strict=True)
        with global_batch([target for target in targets if target is not None] or flat) as batch:
            # A Mean metric averages over replicas. The average of part * replicas is the sum of the parts. With the
            # weight total / replicas on each replica, the batch has the weight of all of its rows.
            replicas = tf.distribute.get_replica_context().num_replicas_in_sync
            counted = batch.total / replicas
            parts = []
            for target, output, weight, one, factor, metric in columns:
                if target is None or one is None:
                    continue
                target, output, weight = compile_utils.match_dtype_and_rank(target, output, weight)
                weight = losses_utils.apply_mask(output, weight, losses_utils.get_mask(output))
                part = one(target, output, sample_weight=weight)
                if one.reduction in means:
                    part *= tf.cast(batch.share, part.dtype)
                if metric is not None:
                    metric.update_state(part * replicas, sample_weight=counted)
                parts.append(part if factor is None else part * factor)
            if regularization_losses:
                regularization = tf.add_n(losses_utils.cast_losses_to_common_dtype(regularization_losses))
                parts.append(regularization * tf.cast(batch.share, regularization.dtype))
            if not parts:
                return None
            total = tf.add_n(losses_utils.cast_losses_to_common_dtype(parts))
            self._total_loss_mean.update_state(total * replicas, sample_weight=counted)
            return total

    return loss


def _apply_valid_mask(stock: Callable) -> Callable:
    def apply_valid_mask(losses: Any, sw: Any, mask: Any, reduction: Any) -> Any:
        batch = current_batch()
        weights = stock(losses, sw, mask, reduction)
        if mask is None or batch is None or reduction not in ("auto", "sum_over_batch_size"):
            return weights
        # The caller multiplies the loss by the replica's share of the rows. The correct factor is the replica's share
        # of the unmasked entries, so that the weights are multiplied by the quotient of the two shares.
        valid = tf.reduce_sum(tf.cast(mask, tf.float32))
        share = tf.math.divide_no_nan(valid, sum_over_replicas(valid))
        return tf.math.multiply_no_nan(weights, tf.cast(tf.math.divide_no_nan(share, batch.share), weights.dtype))

    return apply_valid_mask


def _apply() -> None:
    compile_utils: Any = engine_module("compile_utils")
    compile_utils.losses_utils.apply_valid_mask = _apply_valid_mask(compile_utils.losses_utils.apply_valid_mask)
    compile_utils.LossesContainer.__call__ = _loss_of_container(compile_utils.LossesContainer.__call__)


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
