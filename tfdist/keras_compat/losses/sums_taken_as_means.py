"""Notices losses that are sums over rows, which tfdist takes as means, and writes a line to the log.

The sum over the global batch is the sum of the replicas' sums, as `tf.reduce_sum(losses) * (1 / GLOBAL_BATCH_SIZE)` of
TensorFlow's tutorial. A sum that the program divides by the rows of the replica is a mean. In a graph the two can look
alike: with two replicas and a known number of rows, `tf.reduce_sum(losses) / (2 * x.shape[0])` has the same constant.
So nothing is changed, and the user chooses. Other sums that may be means have no line.

Source: https://www.tensorflow.org/tutorials/distribute/custom_training divides in this way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.losses.divided_sums import counts_rows
from tfdist.keras_compat.losses.first_axis import depends_on_batch
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import SumsAndMeans
from tfdist.keras_compat.reached import reached

# Operations whose terms are those of their operands, if they are not what is looked for.
_SAME = ("Identity", "Cast", "Squeeze", "Reshape", "ExpandDims", "Neg", "Sum", "Mean")
_ADDED = ("AddV2", "Add", "AddN", "Sub", "Pack")
_SUMS = ("Sum", "L2Loss")
_DIVISIONS = ("RealDiv", "DivNoNan")
_PRODUCTS = ("Mul", "MulNoNan")
# After so many terms, the losses of a step are not looked at any more. To look at a sum is to walk through the model.
_MOST_TERMS = 1000
_MOST_SUMS = 50


def notice_sums(losses: Sequence[Any], batch: GlobalBatch) -> None:
    """Tells the rule of the step if a loss has a sum over rows among its terms that is taken as a mean.

    Args:
        losses: tensors of this replica. Eager ones have no graph that could be looked at.
        batch: the global batch of the step.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1 or not batch.rule.looks_for_sums:
        return
    for loss in losses:
        for term in _sums(loss, batch):
            if not _is_mean(term, replicas, batch.static_rows):
                batch.rule.sees_sum()
                return


@dataclasses.dataclass(frozen=True)
class _Term:
    """A term of a loss.

    Attributes:
        value: tensor of this replica.
        divisors: constants by which the term is divided in the loss.
    """

    value: tf.Tensor
    divisors: tuple[float, ...] = ()

    def of(self, value: tf.Tensor, *divisors: float) -> _Term:
        """Returns the term that another tensor is in this one."""
        return _Term(value, (*self.divisors, *divisors))


def _sums(loss: Any, batch: GlobalBatch) -> Iterator[_Term]:
    """Yields the terms of a scalar that are sums over rows."""
    if not hasattr(loss, "graph") or loss.shape.rank != 0:
        return
    means, finder = {id(mean) for mean in batch.means}, SumsAndMeans(batch, by_origin=True)
    waiting = [_Term(loss)]
    while waiting and len(batch.judged) < _MOST_TERMS and len(batch.judged_sums) < _MOST_SUMS:
        term = waiting.pop()
        if id(term.value) in batch.judged or id(term.value) in means:
            continue
        batch.judged[id(term.value)] = term.value
        if term.value.op.type in (*_SUMS, *_DIVISIONS) and depends_on_batch(term.value):
            batch.judged_sums.append(term.value)
            if finder.is_mean(term.value):
                continue
            if finder.is_sum(term.value):
                yield term
                continue
        waiting.extend(_terms(term, batch.static_rows))


def _terms(term: _Term, rows: int | None) -> Iterator[_Term]:
    kind, inputs = term.value.op.type, term.value.op.inputs
    if kind in _ADDED:
        yield from (term.of(one) for one in inputs)
    elif kind in _SAME:
        yield term.of(inputs[0])
    elif kind in _DIVISIONS:
        number = _constant(inputs[1], rows)
        if number:
            yield term.of(inputs[0], number)
    elif kind in _PRODUCTS:
        # To find out whether a number depends on the batch takes longer than to read a constant.
        orders = sorted((inputs, inputs[::-1]), key=lambda order: tf.get_static_value(order[1]) is None)
        for one, factor in orders:
            number = _constant(factor, rows)
            if number:
                yield term.of(one, 1 / number)
                break


def _constant(value: tf.Tensor, rows: int | None) -> float | None:
    """Returns the absolute value of a constant; 1 for a variable, such as the scale of a loss; else None."""
    if value.shape.rank != 0:
        return None
    known = tf.get_static_value(value)
    if known is None:
        return None if _is_computed_from_rows(value, rows) or not _reads_variable(value) else 1.0
    return abs(complex(known))


def _reads_variable(number: tf.Tensor) -> bool:
    return any(hasattr(one, "graph") and one.op.type == "ReadVariableOp" for one in reached(number))


def _is_mean(term: _Term, replicas: int, rows: int | None) -> bool:
    """Returns whether a sum over rows may be divided by their number."""
    values = term.value.op.inputs[0]
    return _is_divided_by_rows(term, values.shape.num_elements(), replicas, rows) or _is_of_shares(values, rows)


def _is_divided_by_rows(term: _Term, entries: int | None, replicas: int, rows: int | None) -> bool:
    """Returns whether the constants may count rows or entries, such as a number that Python has read from a shape."""
    if not rows or not entries:
        return False
    divisor = math.prod(term.divisors)
    if divisor in (rows, entries):
        return True
    of_global_batch = (rows * replicas, entries * replicas)
    return any(
        _is_multiple(one, rows) and not any(math.isclose(one, other, rel_tol=1e-6) for other in of_global_batch)
        for one in (divisor, *term.divisors)
    )


def _is_multiple(number: float, rows: int) -> bool:
    quotient = number / rows
    return 0.5 < quotient < math.inf and math.isclose(quotient, round(quotient), rel_tol=1e-6)


def _is_of_shares(values: tf.Tensor, rows: int | None) -> bool:
    """Returns whether values may be divided by their number before they are added up."""
    for one in reached(values):
        if not hasattr(one, "graph") or one.op.type not in (*_DIVISIONS, *_PRODUCTS):
            continue
        factors = one.op.inputs[1:] if one.op.type in _DIVISIONS else one.op.inputs
        if any(factor.shape.num_elements() == 1 and _may_count(factor, rows) for factor in factors):
            return True
    return False


def _may_count(factor: tf.Tensor, rows: int | None) -> bool:
    """Returns whether a number may be computed from a number of rows."""
    known = tf.get_static_value(factor)
    if known is None:
        return _is_computed_from_rows(factor, rows)
    number = abs(complex(known.ravel()[0]))
    return rows is not None and number > 0 and (_is_multiple(number, rows) or _is_multiple(1 / number, rows))


def _is_computed_from_rows(number: tf.Tensor, rows: int | None) -> bool:
    return depends_on_batch(number) or any(counts_rows(one, rows) for one in reached(number))
