"""Gives the batches of a PyDataset or Sequence one order on all workers, and compares the first ones.

`fit` shuffles the batches of a PyDataset or Sequence with the module `random`, which each worker seeds for itself. A
worker then takes its rows of other batches than its peers: each row is used once, but in no global batch of one device.
A PyDataset, a Sequence or a generator that shuffles its rows itself uses some of them twice.

Source: PyDatasetAdapter and OrderedEnqueuer in Keras 3, KerasSequenceAdapter and OrderedEnqueuer in Keras 2.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.keras_compat.data.arrays_of_workers import say_if_arrays_differ
from tfdist.keras_compat.data.order import DRAWN
from tfdist.keras_compat.version import engine_module, keras_in_use
from tfdist.workers import count_workers, exchange


class _Drawn:
    """The order of the batches of the last call of fit.

    Attributes:
        number: what the workers have drawn; None if the order is that of the module `random`.
        epochs: how many epochs have been ordered.
    """

    number: int | None = None
    epochs: int = 0


_drawn = _Drawn()
_thread = threading.local()


class _Random:
    """Stands for the module `random` where Keras shuffles the numbers of batches."""

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)

    def shuffle(self, items: list[int]) -> None:
        order = getattr(_thread, "order", None) or _order_of_epoch()
        (order or random).shuffle(items)


def share_batches(strategy_in_use: Callable[[], tf.distribute.Strategy | None]) -> None:
    """Gives the batches of a PyDataset or Sequence one order on all workers, and compares the first ones.

    Args:
        strategy_in_use: returns the strategy for which Keras prepares data.
    """
    (_share_in_keras3 if keras_in_use().is_keras3 else _share_in_keras2)(strategy_in_use)


def _share_in_keras3(strategy_in_use: Callable[[], tf.distribute.Strategy | None]) -> None:
    utilities: Any = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    sequences: Any = importlib.import_module("keras.src.trainers.data_adapters.py_dataset_adapter")
    get_spec, get_dataset = utilities.get_tensor_spec, sequences.PyDatasetAdapter.get_tf_dataset

    def get_tensor_spec(batches: Any) -> Any:
        _say_if_batches_differ(strategy_in_use(), batches)
        return get_spec(batches)

    def get_tf_dataset(self: Any) -> tf.data.Dataset:
        drawn = _draw_order(strategy_in_use(), self.shuffle)
        return _marked(get_dataset(self), drawn)

    utilities.get_tensor_spec = get_tensor_spec
    sequences.PyDatasetAdapter.get_tf_dataset = get_tf_dataset
    sequences.random = _Random()
    sequences.OrderedEnqueuer._run = _in_order_of_epoch(sequences.OrderedEnqueuer._run)


def _share_in_keras2(strategy_in_use: Callable[[], tf.distribute.Strategy | None]) -> None:
    adapters: Any = engine_module("data_adapter")
    utilities, init = adapters.data_utils, adapters.KerasSequenceAdapter.__init__

    def with_order(self: Any, x: Any, *args: Any, shuffle: bool = False, **kwargs: Any) -> None:
        drawn = _draw_order(strategy_in_use(), shuffle)
        init(self, x, *args, shuffle=shuffle, **kwargs)
        _marked(self._dataset, drawn)

    def compared(peek_and_restore: Callable) -> Callable:
        def peek(x: Any) -> Any:
            batch, restored = peek_and_restore(x)
            _say_if_batches_differ(strategy_in_use(), [batch])
            return batch, restored

        return peek

    adapters.KerasSequenceAdapter.__init__ = with_order
    for one in (adapters.GeneratorDataAdapter, adapters.KerasSequenceAdapter):
        one._peek_and_restore = staticmethod(compared(one._peek_and_restore))
    adapters.random = utilities.random = _Random()
    utilities.OrderedEnqueuer._run = _in_order_of_epoch(utilities.OrderedEnqueuer._run)


def _draw_order(strategy: tf.distribute.Strategy | None, shuffle: Any) -> bool:
    """Lets the workers draw the order of one call of fit, unless they have the same seed; returns whether they did."""
    if not shuffle:
        return False
    _drawn.number, _drawn.epochs = None, 0
    if strategy is None or count_workers(strategy) == 1:
        return False
    state = zlib.crc32(repr(random.getstate()).encode())
    rows = exchange(strategy, [state, int.from_bytes(os.urandom(7), "big")], dtype="int64", to="call fit")
    if all(row[0] == rows[0][0] for row in rows):
        return False
    _drawn.number = int(rows[0][1])
    return True


def _in_order_of_epoch(stock: Callable[..., None]) -> Callable[..., None]:
    """Returns the function of the thread that reads ahead, which may shuffle more often than its epoch needs."""

    def run(self: Any) -> None:
        _thread.order = _order_of_epoch() if self.shuffle else None
        stock(self)

    return run


def _say_if_batches_differ(strategy: tf.distribute.Strategy | None, batches: Any) -> None:
    """Warns once in the log if the workers have other targets in their first batches.

    Each worker may augment its inputs by chance, so that inputs are compared only where there are no targets.
    """
    parts = [batch[1] if isinstance(batch, tuple) and len(batch) > 1 else batch for batch in batches]
    say_if_arrays_differ(strategy, parts, called="batches")


def _marked(dataset: tf.data.Dataset, drawn: bool) -> tf.data.Dataset:
    if drawn:
        setattr(dataset, DRAWN, True)
    return dataset


def _order_of_epoch() -> random.Random | None:
    if _drawn.number is None:
        return None
    _drawn.epochs += 1
    return random.Random(f"{_drawn.number} {_drawn.epochs}")
