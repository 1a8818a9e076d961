"""Notices losses that are sums over rows, which tfdist takes as means, and writes a line to the log.

The sum over the global batch is the sum of the replicas' sums, as `tf.reduce_sum(losses) * (1 / GLOBAL_BATCH_SIZE)` of
TensorFlow's tutorial. A sum that the program divides by the rows of the replica is a mean. In a graph the two can look
alike: with two replicas, `tf.reduce_sum(losses) / (2 * x.shape[0])` may have the same constant. So nothing is changed,
and the user chooses. Where a sum may be a mean there is no line.

Source: https://www.tensorflow.org/tutorials/distribute/custom_training divides in this way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.losses.divided_sums import counts_rows
from tfdist.keras_compat.losses.first_axis import depends_on_batch
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import SumsAndMeans
from tfdist.keras_compat.reached import reached

_SAME = ("Identity", "Cast", "Squeeze", "Reshape", "ExpandDims", "Neg")
_ADDED = ("AddV2", "Add", "AddN", "Sub")
_DIVISIONS = ("RealDiv", "DivNoNan")
_PRODUCTS = ("Mul", "MulNoNan")
# A loss with more terms is not looked at any further.
_MOST_TERMS = 1000


def notice_sums(losses: Sequence[Any], batch: GlobalBatch) -> None:
    """Tells the rule of the step if a loss has a sum over rows among its terms that is taken as a mean.

    Args:
        losses: tensors of this replica. Eager ones have no graph that could be looked at.
        batch: the global batch of the step.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1 or not batch.rule.may_warn_of_sums:
        return
    for loss in losses:
        for values, divisor in _sums(loss, batch):
            if not _counts_rows(divisor, values, replicas, batch.static_rows) and not _is_divided(values, batch):
                batch.rule.warn_of_sum()
                return


def _sums(loss: Any, batch: GlobalBatch) -> Iterator[tuple[tf.Tensor, float]]:
    """Yields what is summed over rows in the terms of a scalar, and the constant by which the sum is divided."""
    if not hasattr(loss, "graph") or loss.shape.rank != 0:
        return
    means, finder = {id(mean) for mean in batch.means}, SumsAndMeans(batch, by_origin=True)
    waiting = [(loss, 1.0)]
    for _ in range(_MOST_TERMS):
        if not waiting:
            return
        term, divisor = waiting.pop()
        if id(term) in means or finder.is_mean(term):
            continue
        kind, inputs = term.op.type, term.op.inputs
        if finder.is_sum(term):
            yield inputs[0], divisor
        elif kind in _ADDED:
            waiting.extend((one, divisor) for one in inputs)
        elif kind in _SAME or (kind == "Sum" and inputs[0].shape.num_elements() == 1):
            waiting.append((inputs[0], divisor))
        elif kind in _DIVISIONS:
            number = _constant(inputs[1], batch.static_rows)
            waiting.extend([(inputs[0], divisor * number)] if number else [])
        elif kind in _PRODUCTS:
            for one, factor in (inputs, inputs[::-1]):
                number = _constant(factor, batch.static_rows)
                if number:
                    waiting.append((one, divisor / number))
                    break


def _constant(value: tf.Tensor, rows: int | None) -> float | None:
    """Returns the absolute value of a constant; 1 for a variable, such as the scale of a loss; else None."""
    if value.shape.rank != 0:
        return None
    known = tf.get_static_value(value)
    if known is None:
        return None if _is_computed_from_rows(value, rows) else 1.0
    return abs(float(known))


def _counts_rows(divisor: float, values: tf.Tensor, replicas: int, rows: int | None) -> bool:
    """Returns whether a constant may be a number of rows that Python has read from a shape, or of their entries."""
    entries = values.shape.num_elements()
    if not rows or not entries:
        return False
    if divisor in (rows, entries):
        return True
    of_global_batch = (rows * replicas, entries * replicas)
    return _is_multiple(divisor, rows) and not any(np.isclose(divisor, one, rtol=1e-6) for one in of_global_batch)


def _is_multiple(number: float, rows: int) -> bool:
    quotient = number / rows
    return 0.5 < quotient < np.inf and bool(np.isclose(quotient, round(quotient), rtol=1e-6, atol=0))


def _is_divided(values: tf.Tensor, batch: GlobalBatch) -> bool:
    """Returns whether values may be divided by their number before they are added up."""
    for one in reached(values):
        if not hasattr(one, "graph") or one.op.type not in (*_DIVISIONS, *_PRODUCTS):
            continue
        factors = one.op.inputs[1:] if one.op.type in _DIVISIONS else one.op.inputs
        if any(factor.shape.num_elements() == 1 and _may_count(factor, batch.static_rows) for factor in factors):
            return True
    return False


def _may_count(factor: tf.Tensor, rows: int | None) -> bool:
    """Returns whether a number may be computed from a number of rows."""
    known = tf.get_static_value(factor)
    if known is None:
        return _is_computed_from_rows(factor, rows)
    number = abs(float(np.ravel(known)[0]))
    return rows is not None and number > 0 and (_is_multiple(number, rows) or _is_multiple(1 / number, rows))


def _is_computed_from_rows(number: tf.Tensor, rows: int | None) -> bool:
    return depends_on_batch(number) or any(counts_rows(one, rows) for one in reached(number))
