"""Keeps the metrics of a model on the coordinator while its steps run on the workers of a parameter-server cluster.

Metric variables on a parameter server may be read while workers write them. If the total includes a step that the
count does not yet include, the accuracy may be above 1 (keras-team/keras#18624). With the ledger, each step updates
metrics that start at 0 and returns their values; the coordinator adds these values to the running values. At any time,
the metrics include exactly the finished steps. If a worker is lost and its step runs twice, the step counts once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf


class Tally:
    """A tensor that can be assigned to, eagerly or in a graph being traced; it replaces the tf.Variable of a metric.

    Args:
        variable: the tf.Variable or Tally whose dtype and shape the new tally has. The value of the tally starts at 0.
    """

    def __init__(self, variable: Any) -> None:
        self.dtype = tf.as_dtype(variable.dtype)
        self.shape = tf.TensorShape(variable.shape)
        self.tensor = tf.zeros(self.shape, self.dtype)

    def assign(self, value: Any) -> tf.Tensor:
        """Replaces the value and returns it."""
        self.tensor = tf.convert_to_tensor(value, dtype=self.dtype)
        return self.tensor

    def assign_add(self, value: Any) -> tf.Tensor:
        """Adds to the value and returns it."""
        return self.assign(self.tensor + tf.convert_to_tensor(value, dtype=self.dtype))

    def assign_sub(self, value: Any) -> tf.Tensor:
        """Subtracts from the value and returns it."""
        return self.assign(self.tensor - tf.convert_to_tensor(value, dtype=self.dtype))

    def read_value(self) -> tf.Tensor:
        """Returns the value."""
        return self.tensor

    value = read_value

    def numpy(self) -> Any:
        """Returns the value as a NumPy array."""
        return self.tensor.numpy()

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.tensor.numpy() if dtype is None else self.tensor.numpy().astype(dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return self.tensor if dtype is None else tf.cast(self.tensor, dtype)


def _forward(name: str) -> Callable:
    def operator(self: Tally, *others: Any) -> Any:
        tensors = [other.tensor if isinstance(other, Tally) else other for other in others]
        return getattr(self.tensor, name)(*tensors)

    return operator


# Metrics use their variables in arithmetic, as if the variables were tensors.
for _name in sorted(tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__"}):
    setattr(Tally, _name, _forward(_name))


@dataclasses.dataclass(frozen=True)
class Slot:
    """An attribute in which a metric keeps a tf.Variable.

    Attributes:
        owner: the object that has the attribute: a Keras 3 Variable, or a Keras 2 metric.
        attribute: the name of the attribute.
    """

    owner: Any
    attribute: str

    @property
    def value(self) -> Any:
        """The tf.Variable, or the Tally that replaces it."""
        return self.owner.__dict__[self.attribute]

    def put(self, value: Any) -> None:
        """Sets the attribute and bypasses the owner's tracking of variables."""
        self.owner.__dict__[self.attribute] = value

    @property
    def key(self) -> tuple[int, str]:
        """A key that is equal for two slots only if both are the same attribute of the same object."""
        return id(self.owner), self.attribute


class MetricLedger:
    """The metric variables of one model, and their running values on the coordinator.

    Args:
        slots: the attributes in which the metrics keep their variables.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = tuple({slot.key: slot for slot in slots}.values())
        self._stock: list[Any] = []

    def covers(self, slots: Sequence[Slot]) -> bool:
        """Returns whether the ledger was made for exactly these slots."""
        return {slot.key for slot in slots} == {slot.key for slot in self._slots}

    def open(self) -> None:
        """Moves the metrics' values to the coordinator; does nothing if the ledger is open."""
        if self._stock:
            return
        self._stock = [slot.value for slot in self._slots]
        for slot, variable in zip(self._slots, self._stock, strict=True):
            with tf.init_scope():
                tally = Tally(variable)
                tally.assign(variable)
            slot.put(tally)

    def close(self) -> None:
        """Writes the metrics' values back to the parameter server."""
        for slot, variable in zip(self._slots, self._stock, strict=False):
            variable.assign(slot.value.tensor)
            slot.put(variable)
        self._stock = []

    def reset(self) -> None:
        """Sets all values to 0."""
        for slot in self._slots:
            slot.value.assign(tf.zeros(slot.value.shape, slot.value.dtype))

    @contextlib.contextmanager
    def fresh(self) -> Iterator[list[Tally]]:
        """Replaces the metrics' values by tallies that start at 0, while a step is traced; yields the tallies."""
        outer = [slot.value for slot in self._slots]
        inner = [Tally(value) for value in outer]
        for slot, tally in zip(self._slots, inner, strict=True):
            slot.put(tally)
        try:
            yield inner
        finally:
            for slot, value in zip(self._slots, outer, strict=True):
                slot.put(value)

    def pack(self, tallies: Sequence[Tally]) -> list[tf.Tensor]:
        """Returns the values of tallies as one flat tensor per dtype, so that fetching them takes few round trips."""
        return [
            tf.concat([tf.reshape(tallies[i].tensor, [-1]) for i in chosen], axis=0) for _, chosen in self._by_dtype()
        ]

    def add(self, packed: Sequence[Any]) -> None:
        """Adds the outputs of a step, which begin with the tensors that `pack` made, to the running values."""
        for (dtype, chosen), flat in zip(self._by_dtype(), packed, strict=False):
            tallies = [self._slots[i].value for i in chosen]
            parts = tf.split(tf.constant(flat, dtype), [tally.shape.num_elements() for tally in tallies])
            for tally, part in zip(tallies, parts, strict=True):
                tally.assign_add(tf.reshape(part, tally.shape))

    def _by_dtype(self) -> list[tuple[tf.DType, list[int]]]:
        dtypes = [slot.value.dtype for slot in self._slots]
        return [(t, [i for i, own in enumerate(dtypes) if own == t]) for t in sorted(set(dtypes), key=lambda t: t.name)]
