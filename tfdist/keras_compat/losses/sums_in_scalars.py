"""Scalars of a step that contain sums over the rows of a replica, such as `tf.reduce_sum(losses) / GLOBAL_BATCH_SIZE`.

The sum over the global batch is the sum of the replicas' sums, and no mean weighted by rows, as other scalars of a
replica are. A sum that is divided by a number of rows of the replica is a mean. Divided or multiplied by a number of
the program, or by a variable, it stays a sum.

Source: https://www.tensorflow.org/tutorials/distribute/custom_training divides in this way.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.keras_compat.losses.first_axis import depends_on_batch
from tfdist.keras_compat.losses.global_batch import GlobalBatch
from tfdist.keras_compat.losses.means_over_rows import SumsAndMeans

_SAME = ("Identity", "Cast", "Squeeze", "Reshape", "ExpandDims")
_ADDED = ("AddV2", "Add", "AddN")
_DIVISIONS = ("RealDiv", "DivNoNan")
# A scalar with more terms is taken as a mean, as one without a sum.
_MOST_TERMS = 1000


@dataclasses.dataclass(frozen=True)
class SumOfRows:
    """A sum over rows that is a term of a scalar.

    Attributes:
        value: the sum, of one entry.
        factors: scalars by which the sum is multiplied in the scalar.
        divisors: scalars by which it is divided.
    """

    value: tf.Tensor
    factors: tuple[tf.Tensor, ...] = ()
    divisors: tuple[tf.Tensor, ...] = ()

    def coefficient(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the derivative of the scalar with respect to the sum, a scalar of this dtype."""
        one = tf.ones([], dtype)
        factors = functools.reduce(operator.mul, [tf.cast(factor, dtype) for factor in self.factors], one)
        return factors / functools.reduce(operator.mul, [tf.cast(divisor, dtype) for divisor in self.divisors], one)

    def times(self, *factors: Any) -> SumOfRows:
        """Returns the sum with further factors."""
        return dataclasses.replace(self, factors=(*self.factors, *factors))

    def divisor(self) -> float | None:
        """Returns the number by which the sum is divided; None if it is not known, or if it is 1."""
        known = [[tf.get_static_value(one) for one in numbers] for numbers in (self.factors, self.divisors)]
        if any(value is None for values in known for value in values):
            return None
        factor, divisor = (abs(float(np.prod(np.asarray(values, "float64")))) for values in known)
        return None if factor in (0.0, divisor) else divisor / factor


def mean_with_sums(value: tf.Tensor, batch: GlobalBatch) -> tf.Tensor:
    """Returns a scalar whose mean over replicas, weighted by rows, has the sums over the rows of all replicas.

    Args:
        value: tensor of this replica. It is returned itself if it contains no sum over rows.
        batch: the global batch of the step.
    """
    sums = sums_of_rows(value, batch)
    if not sums:
        return value
    total = tf.add_n([one.coefficient(value.dtype) * tf.cast(tf.reshape(one.value, []), value.dtype) for one in sums])
    # A mean over no rows is NaN; the sum over them is 0.
    corrected = value + total * _missing(value.dtype, batch)
    batch.means.append(corrected)
    return corrected


def with_sums(target: Any, output_gradients: Any, batch: GlobalBatch) -> tuple[Any, Any]:
    """Returns targets and output gradients whose gradient, weighted by rows, is that of sums over all rows.

    Args:
        target: the tensors that are differentiated, nested or not.
        output_gradients: None, or one tensor or None for each target.
        batch: the global batch of the step.
    """
    targets = tf.nest.flatten(target)
    given = [None] * len(targets) if output_gradients is None else tf.nest.flatten(output_gradients)
    added: list[tuple[tf.Tensor, tf.Tensor]] = []
    for one, seed in zip(targets, given, strict=True):
        for found in sums_of_rows(one, batch):
            factor = found.coefficient(one.dtype) * _missing(one.dtype, batch)
            factor = factor if seed is None else factor * tf.reshape(tf.cast(seed, one.dtype), [])
            added.append((found.value, tf.ones_like(found.value) * tf.cast(factor, found.value.dtype)))
    if not added:
        return target, output_gradients
    # TensorFlow takes None only where all output gradients are missing.
    seeds = [tf.ones_like(one) if seed is None else seed for one, seed in zip(targets, given, strict=True)]
    return [*targets, *(one for one, _ in added)], [*seeds, *(seed for _, seed in added)]


def sums_of_rows(value: Any, batch: GlobalBatch) -> list[SumOfRows]:
    """Returns the terms of a scalar that are sums over the rows of a replica; eager tensors have none that are known.

    Args:
        value: tensor of this replica.
        batch: the global batch of the step.
    """
    is_known = batch.rule.adds_up_sums and tf.is_tensor(value) and hasattr(value, "graph")
    if not is_known or value.shape.rank != 0 or not value.dtype.is_floating:
        return []
    means, finder = {id(mean) for mean in batch.means}, SumsAndMeans(batch, by_origin=True)
    found: list[SumOfRows] = []
    waiting, seen = [SumOfRows(value)], 0
    while waiting:
        term = waiting.pop()
        seen += 1
        if seen > _MOST_TERMS:
            return []
        if id(term.value) in means or finder.is_mean(term.value):
            continue
        if finder.is_sum(term.value):
            if not _is_divided_by_rows(term, batch):
                found.append(term)
            continue
        waiting.extend(_terms(term))
    return found


def _terms(term: SumOfRows) -> Iterable[SumOfRows]:
    """Yields what is added up to a term, with its factors."""
    kind, inputs = term.value.op.type, term.value.op.inputs
    if kind == "Neg":
        yield dataclasses.replace(term, value=inputs[0]).times(-1.0)
    elif kind in _SAME or (kind == "Sum" and inputs[0].shape.num_elements() == 1):
        yield dataclasses.replace(term, value=inputs[0])
    elif kind in _ADDED:
        yield from (dataclasses.replace(term, value=one) for one in inputs)
    elif kind == "Sub":
        yield dataclasses.replace(term, value=inputs[0])
        yield dataclasses.replace(term, value=inputs[1]).times(-1.0)
    elif kind == "Mul":
        for one, factor in (inputs, inputs[::-1]):
            if _is_number(factor):
                yield dataclasses.replace(term, value=one).times(factor)
                break
    elif kind in _DIVISIONS and _is_number(inputs[1]):
        yield dataclasses.replace(term, value=inputs[0], divisors=(*term.divisors, inputs[1]))


def _is_number(value: tf.Tensor) -> bool:
    """Returns whether a tensor is a scalar that is the same on all replicas, whatever their rows."""
    return value.shape.rank == 0 and not depends_on_batch(value)


def _is_divided_by_rows(term: SumOfRows, batch: GlobalBatch) -> bool:
    """Returns whether a number of the program by which a sum is divided counts the rows of the replica.

    It is one that Python has read, as `x.shape[0]`, which exists only if the number of rows is known. A multiple of it
    may count entries, but the multiple by the number of replicas is that of the global batch.
    """
    number = term.divisor()
    if batch.static_rows is None or number is None:
        return False
    quotient = number / batch.static_rows
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    is_whole = quotient > 0.5 and bool(np.isclose(quotient, round(quotient), rtol=1e-6, atol=0))
    return is_whole and (round(quotient) != replicas or replicas == 1)


def _missing(dtype: tf.DType, batch: GlobalBatch) -> tf.Tensor:
    """Returns the factor of what a sum lacks, so that its weighted mean is a sum: 1 / share - 1."""
    share = batch.share(dtype)
    return tf.math.divide_no_nan(1 - share, share)
