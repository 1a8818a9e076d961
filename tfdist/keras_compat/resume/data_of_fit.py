"""Finds the object that gives fit its data, and moves data to the position of an interruption, for each Keras."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger

_local = threading.local()


def remember_newest(data_class: type) -> None:
    """Makes `newest_data` return the newest object of a class.

    Args:
        data_class: the class of Keras whose objects give fit its data. Fit makes such an object before on_train_begin.
    """
    stock = data_class.__init__  # type: ignore[misc]

    @functools.wraps(stock)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        _local.newest = self

    data_class.__init__ = init  # type: ignore[misc]


def newest_data() -> Any:
    """Returns the object that this thread has made last."""
    return _local.newest


def moved(dataset: Any, steps: int) -> Any:
    """Returns the dataset that begins after some steps, or None if only reading can move the dataset.

    Args:
        dataset: dataset of fit.
        steps: number of steps.
    """
    if not hasattr(dataset, "at"):
        return None
    return dataset.at(dataset.state.after(steps, steps_per_epoch=dataset.steps_per_epoch))


def moved_in_fit(dataset: Any, steps: int) -> Any:
    """Returns the dataset that begins some steps after the beginning of a fit, or None if only reading can move it.

    Args:
        dataset: dataset of fit.
        steps: number of steps since the beginning of the fit, which may have begun at a later epoch of the order.
    """
    iterations = getattr(dataset, "iterations", None)
    return moved(dataset, steps) if iterations is None else iterations.at_step(steps)


def is_asynchronous(model: Any) -> bool:
    """Returns whether the workers of a model make steps at different times, so that only an epoch has a clear end.

    Args:
        model: a Keras model.
    """
    return isinstance(model.distribute_strategy, tf.distribute.ParameterServerStrategy)


def is_endless(dataset: Any) -> bool:
    """Returns whether a dataset has no end.

    Args:
        dataset: a dataset, or a distributed dataset.
    """
    return _cardinality(dataset) == tf.data.INFINITE_CARDINALITY


def is_shorter(dataset: Any, batches: int) -> bool:
    """Returns whether a dataset says that it has fewer batches.

    Args:
        dataset: a dataset, or a distributed dataset.
        batches: number of batches.
    """
    return 0 <= _cardinality(dataset) < batches


def _cardinality(dataset: Any) -> int:
    cardinality = getattr(dataset, "cardinality", None)
    found = cardinality() if callable(cardinality) else cardinality
    return tf.data.UNKNOWN_CARDINALITY if found is None else int(found)


def datasets_of(data: Any) -> Iterator[tf.data.Dataset]:
    """Yields the datasets of which data consists, the last one first.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.
    """
    begin = getattr(data, "_original_dataset", None)
    found = [begin] if begin is not None else list(getattr(data, "_datasets", [data]))
    seen: set[int] = set()
    while found:
        dataset = found.pop()
        if isinstance(dataset, tf.data.Dataset) and id(dataset) not in seen:
            seen.add(id(dataset))
            yield dataset
            found.extend(dataset._inputs())


def operations_of(dataset: tf.data.Dataset) -> Iterator[tf.Operation]:
    """Yields the operations of the functions that a dataset calls.

    Args:
        dataset: a dataset, without those that it reads.
    """
    for function in dataset._functions():
        yield from getattr(getattr(function.function, "graph", None), "get_operations", list)()


def depends_on_earlier_epochs(data: Any) -> bool:
    """Returns whether an epoch of data depends on how far the epochs before were read.

    That is so for Python generators, which may remember the order that they have drawn, and for cached data. What Keras
    makes of a PyDataset or Sequence is a generator.

    Args:
        data: what fit reads: a dataset, or a distributed dataset.

    Example:
        >>> import tensorflow as tf
        >>> from tfdist.keras_compat.resume.data_of_fit import depends_on_earlier_epochs
        >>> data = tf.data.Dataset.range(8)
        >>> depends_on_earlier_epochs(data.shuffle(8)), depends_on_earlier_epochs(data.shuffle(8).cache().batch(2))
        (False, True)
    """
    return any(
        "Cache" in type(dataset).__name__
        or any(operation.type == "GeneratorDataset" for operation in operations_of(dataset))
        for dataset in datasets_of(data)
    )


def read_batches(iterator: Any, batches: int | None, *, may_end: bool = False) -> None:
    """Reads batches and discards them.

    Args:
        iterator: iterator of a distributed dataset or of a dataset.
        batches: number of batches; None for all.
        may_end: whether there may be fewer batches.

    Raises:
        ValueError: if there are fewer batches.
    """
    number = sum(1 for _ in itertools.islice(iterator, batches))
    if batches is not None and number < batches and not may_end:
        raise ValueError(
            f"expected data with at least the {batches} batches that the training has read before its interruption, "
            f"received {number}; go on with the same data, or begin anew in another directory."
        )
    _local.batches = getattr(_local, "batches", 0) + number


def say_what_was_read() -> None:
    """Writes to the log how many batches this thread has read since the last call, if any."""
    batches, _local.batches = getattr(_local, "batches", 0), 0
    if batches:
        get_logger().info("%d batches were read again to go on with the next one", batches)
