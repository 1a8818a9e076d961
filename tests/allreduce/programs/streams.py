"""Collectives of Streams, and how they are ordered."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.allreduce.programs.replicas import on_each, own, value
from tfdist.allreduce import Streams
from tfdist.allreduce.streams import unexpected_launchers, warn_unless_streams

SHAPES = [(3, 2), (5,), (), (4,), (2, 2), (1,)]
DTYPES = ["float32", "float16", "float64", "int32", "bfloat16", "float32"]
ROWS = [1, 3]
COLUMNS = 4


def run(strategy: tf.distribute.Strategy, folder: Path) -> dict[str, Any]:
    found = {name: on_each(strategy, step) for name, step in STEPS.items()}
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        found["orders"] = [_orders(strategy)]
        found["changed"] = [_with_changed_launchers(strategy)]
    return found


def _tensors() -> list[tf.Tensor]:
    def tensor(place: int) -> tf.Tensor:
        return tf.cast(own(lambda replica: value(replica, place, shape=SHAPES[place])), DTYPES[place])

    return [tensor(place) for place in range(len(SHAPES))]


def _all_reduce() -> Any:
    streams = Streams()
    sums = streams.all_reduce(_tensors())
    assert [total.dtype.name for total in sums] == DTYPES
    return sums, tf.cast(streams.sent, tf.float64)


def _all_gather() -> Any:
    streams = Streams()
    gathered = streams.all_gather(own(lambda replica: value(replica, shape=(2, COLUMNS))))
    return gathered, tf.cast(streams.sent, tf.float64)


def _slices(rows: tf.Tensor | int) -> tf.IndexedSlices:
    whole = own(lambda replica: value(replica, shape=(max(ROWS), COLUMNS)))
    # The shape of what tf.where finds is not known while the step is traced.
    first = tf.where(tf.range(max(ROWS)) < rows)[:, 0]
    # The first row of both replicas is the same row of the dense tensor.
    return tf.IndexedSlices(tf.gather(whole, first), 10 - tf.cast(first, tf.int32), tf.constant([11, COLUMNS]))


def _all_reduce_slices() -> Any:
    streams = Streams()
    rows = tf.constant(ROWS)[tf.distribute.get_replica_context().replica_id_in_sync_group]
    total = streams.all_reduce_slices(_slices(rows))
    assert isinstance(total, tf.IndexedSlices)
    assert tf.is_tensor(streams.sent)
    return tf.convert_to_tensor(total), streams.sent


def _one_after_the_other() -> Any:
    streams = Streams()
    streams.all_gather(own(lambda replica: value(replica, shape=(2, COLUMNS))))
    streams.all_reduce_slices(_slices(2))
    streams.all_reduce(_tensors()[:1])
    return tf.cast(streams.sent, tf.float64)


STEPS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_reduce_slices": _all_reduce_slices,
    "one after the other": _one_after_the_other,
}


def _orders(strategy: tf.distribute.Strategy) -> dict[str, int]:
    """Returns how many sequences the collectives of a step form: those of one sequence share an ordering token."""

    def stock() -> None:
        context = tf.distribute.get_replica_context()
        for tensor in _tensors():
            context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    steps = {
        "two tensors": lambda: Streams().all_reduce(_tensors()[:2]) and None,
        "six tensors": lambda: Streams().all_reduce(_tensors()) and None,
        "stock": stock,
    }
    return {name: len(_tokens(strategy, step)) for name, step in steps.items()}


def _tokens(strategy: tf.distribute.Strategy, step: Any) -> set[str]:
    graph = tf.function(strategy.run, autograph=False).get_concrete_function(step).graph
    collectives = [one for one in graph.get_operations() if one.type == "CollectiveReduceV2"]
    assert collectives
    return {one.name for collective in collectives for one in collective.inputs if one.dtype == tf.resource}


def _with_changed_launchers(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """Returns what happens where TensorFlow holds its launchers in another way than expected."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    warn_unless_streams(strategy)
    found: dict[str, Any] = {"stock": unexpected_launchers(strategy), "stock lines": list(lines)}
    operations = strategy.extended._cross_device_ops
    stock = operations._launchers
    operations._launchers = tuple(stock)
    try:
        found["difference"] = unexpected_launchers(strategy)
        warn_unless_streams(strategy)
        found["sums"] = on_each(strategy, _all_reduce)
        found["orders"] = len(_tokens(strategy, lambda: Streams().all_reduce(_tensors()) and None))
    finally:
        operations._launchers = stock
        logging.getLogger("tfdist").removeHandler(handler)
    found["lines"] = lines
    return found
