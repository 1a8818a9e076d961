"""Finds the object that gives fit its data, and moves data to the position of an interruption, for each Keras."""

from __future__ import annotations

import functools
import threading
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
    cardinality = getattr(dataset, "cardinality", None)
    found = cardinality() if callable(cardinality) else cardinality
    return found is not None and int(found) == tf.data.INFINITE_CARDINALITY


def read_batches(iterator: Any, batches: int) -> None:
    """Reads batches and discards them.

    Args:
        iterator: iterator of a distributed dataset or of a dataset.
        batches: number of batches.
    """
    for _ in range(batches):
        next(iterator)
    _local.batches = getattr(_local, "batches", 0) + batches


def say_what_was_read() -> None:
    """Writes to the log how many batches this thread has read since the last call, if any."""
    batches, _local.batches = getattr(_local, "batches", 0), 0
    if batches:
        get_logger().info("%d batches were read again to go on with the next one", batches)
