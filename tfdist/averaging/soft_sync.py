"""Accumulators: sums of gradients on parameter servers, of which one update is made when n have arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.optimizers.base import held_variable


class Accumulators:
    """One sum of gradients for each variable of an optimizer, beside the variable, and the sum of their weights.

    A gradient g has the weight f, the factor of its learning rate. An update of n gradients has their weighted mean,
    sum(f * g) / sum(f), and the mean factor, sum(f) / n: the step of SGD is the mean of the n scaled steps, and the
    step of Adam, which does not depend on the scale of the gradients, has the mean of their factors.

    Args:
        gradients_per_update: n.
    """

    def __init__(self, gradients_per_update: int) -> None:
        self._per_update = gradients_per_update
        # By the id of the variable, which the optimizer keeps alive.
        self._sums: dict[int, tf.Variable] = {}
        self._weights: tf.Variable | None = None
        # The variables that have gradients, by id.
        self._given: frozenset[int] | None = None

    def prepare(self, strategy: tf.distribute.Strategy, variables: Sequence[Any]) -> None:
        """Makes the sums of variables that have none yet; in cross-replica context."""
        for one in map(held_variable, variables):
            if id(one) not in self._sums:
                self._sums[id(one)] = _zeros(strategy, one.shape, one.dtype, beside=one)
            if self._weights is None:
                self._weights = _zeros(strategy, (), tf.float64, beside=one)

    def add(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        factor: tf.Tensor | None,
        *,
        waiting: tf.Tensor,
        update: Callable[[list[Any], tf.Tensor | None], tf.Tensor],
    ) -> tf.Tensor:
        """Adds gradients to the sums; with the last of n, updates and clears the sums. Returns the number of updates.

        Args:
            gradients: the gradients; None where a variable has none.
            variables: their variables.
            factor: the factor of the learning rate; None is 1.
            waiting: how many gradients the sums have.
            update: makes an update from gradients and a factor, and returns 1.

        Raises:
            ValueError: if another step of the optimizer has gradients for other variables.
        """
        self._check([one for one, gradient in zip(variables, gradients, strict=True) if gradient is not None])
        weight = tf.ones([], tf.float64) if factor is None else factor
        sums, total_weight = [self._sums[id(held_variable(variable))] for variable in variables], self._weights
        assert total_weight is not None
        pairs = zip(sums, gradients, strict=True)
        added = [_add(one, gradient, weight) for one, gradient in pairs if gradient is not None]
        added.append(total_weight.assign_add(weight, read_value=False))

        def make_update() -> tf.Tensor:
            weights = total_weight.read_value()
            means = [
                None if gradient is None else _mean(one, weights) for one, gradient in zip(sums, gradients, strict=True)
            ]
            updates = update(means, None if factor is None else weights / self._per_update)
            with tf.control_dependencies([updates]):
                for one in (*sums, total_weight):
                    one.assign(tf.zeros(one.shape, one.dtype))
            return updates

        with tf.control_dependencies([operation for operation in added if operation is not None]):
            return tf.cond(tf.equal(waiting + 1, self._per_update), make_update, lambda: tf.zeros([], tf.int64))

    def _check(self, variables: Sequence[Any]) -> None:
        # An update is traced with the step whose gradient arrives last. It would leave out the sums of other variables.
        given = frozenset(id(held_variable(variable)) for variable in variables)
        if self._given is None:
            self._given = given
        if given != self._given:
            raise ValueError(
                "expected gradients for the same variables in all steps of an optimizer with staleness.soft_sync, "
                f"received gradients for {len(given)} variables in one step and for {len(self._given)} in another, not "
                "the same ones; take an optimizer for each set of variables."
            )


def _zeros(strategy: tf.distribute.Strategy, shape: Any, dtype: tf.DType, *, beside: Any) -> tf.Variable:
    """Returns a variable on the parameter server of another variable."""
    with tf.init_scope(), strategy.scope(), strategy.extended.colocate_vars_with(beside):
        return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def _add(total: tf.Variable, gradient: Any, weight: tf.Tensor) -> Any:
    with tf.device(total.device):
        weight = tf.cast(weight, total.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.cast(gradient.values, total.dtype) * weight
            return total.scatter_add(tf.IndexedSlices(values, gradient.indices))
        return total.assign_add(tf.cast(gradient, total.dtype) * weight, read_value=False)


def _mean(total: tf.Variable, weights: tf.Tensor) -> tf.Tensor:
    with tf.device(total.device):
        return tf.math.divide_no_nan(total.read_value(), tf.cast(weights, total.dtype))
