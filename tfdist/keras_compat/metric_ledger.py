"""Keeps the metrics of a Keras 3 model on the coordinator while its steps run on parameter-server workers.

Metric variables on a parameter server are read while other workers write: a total that has been added to and a count
that has not give an accuracy above 1 (keras-team/keras#18624). Here each step computes what it would add to fresh
metrics and returns that; the coordinator adds it up. So metrics are exactly those of the steps that have finished, at
every moment, and a step that is run twice because its worker was lost counts once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


class Tally:
    """Stands in for the tf.Variable of a metric: a tensor that can be assigned to, eager or in a graph being traced."""

    def __init__(self, variable: Any) -> None:
        self.dtype = tf.as_dtype(variable.dtype)
        self.shape = tf.TensorShape(variable.shape)
        self.tensor = tf.zeros(self.shape, self.dtype)

    def assign(self, value: Any) -> Tally:
        """Replaces the value."""
        self.tensor = tf.convert_to_tensor(value, dtype=self.dtype)
        return self

    def assign_add(self, value: Any) -> Tally:
        """Adds to the value."""
        return self.assign(self.tensor + tf.convert_to_tensor(value, dtype=self.dtype))

    def assign_sub(self, value: Any) -> Tally:
        """Subtracts from the value."""
        return self.assign(self.tensor - tf.convert_to_tensor(value, dtype=self.dtype))

    def numpy(self) -> Any:
        """Returns the value as a numpy array."""
        return self.tensor.numpy()

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self.tensor if dtype is None else tf.cast(self.tensor, dtype)


class MetricLedger:
    """The metric variables of one model, and their running values on the coordinator.

    Args:
        metrics: the model's metrics, built.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        found = {id(v): v for metric in metrics for v in metric.variables}
        # What replicas hold of other variables cannot be added up; they stay on the parameter server.
        self._variables = [v for v in found.values() if v.aggregation == "sum"]
        self._stock: list[Any] = []

    def covers(self, metrics: Sequence[Any]) -> bool:
        """Whether these metrics have the variables that this ledger was made for."""
        return {id(v) for v in MetricLedger(metrics)._variables} == {id(v) for v in self._variables}

    def open(self) -> None:
        """Moves the metrics' values to the coordinator; does nothing if they are there."""
        if not self._stock:
            self._stock = [v._value for v in self._variables]
            for variable in self._variables:
                with tf.init_scope():
                    tally = Tally(variable)
                    tally.assign(variable._value)
                variable._value = tally

    def close(self) -> None:
        """Writes the metrics' values back to the parameter server."""
        for variable, stock in zip(self._variables, self._stock, strict=False):
            stock.assign(variable._value.tensor)
            variable._value = stock
        self._stock = []

    @contextlib.contextmanager
    def fresh(self) -> Iterator[list[Tally]]:
        """Lets the body, being traced, update metrics that start at zero; yields their values."""
        outer = [v._value for v in self._variables]
        inner = [Tally(v) for v in self._variables]
        for variable, tally in zip(self._variables, inner, strict=True):
            variable._value = tally
        try:
            yield inner
        finally:
            for variable, value in zip(self._variables, outer, strict=True):
                variable._value = value

    def add(self, packed: Sequence[Any]) -> None:
        """Adds what a step returned, which begins with what `pack` made."""
        for (dtype, chosen), flat in zip(self._by_dtype(), packed, strict=False):
            sizes = [v._value.shape.num_elements() for v in chosen]
            for variable, part in zip(chosen, tf.split(tf.constant(flat, dtype), sizes), strict=True):
                variable._value.assign_add(tf.reshape(part, variable._value.shape))

    def pack(self, tallies: Sequence[Tally]) -> list[tf.Tensor]:
        """Returns the values as one flat tensor a dtype, so that a step's result is fetched in few round trips."""
        value_of = dict(zip(map(id, self._variables), tallies, strict=True))
        return [
            tf.concat([tf.reshape(value_of[id(v)].tensor, [-1]) for v in chosen], axis=0)
            for _, chosen in self._by_dtype()
        ]

    def _by_dtype(self) -> list[tuple[str, list[Any]]]:
        dtypes = sorted({v.dtype for v in self._variables})
        return [(dtype, [v for v in self._variables if v.dtype == dtype]) for dtype in dtypes]
