"""Streams: collectives of two replicas, the bytes they send, and the order they are in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.allreduce.programs.replicas import value
from tests.allreduce.programs.streams import COLUMNS, DTYPES, ROWS, SHAPES
from tfdist.allreduce import Streams
from tfdist.allreduce.streams import STREAMS, unexpected_launchers, warn_unless_streams


def test_all_reduce_sums_each_tensor_and_counts_a_ring(either):
    expected = [(value(0, place, shape=shape) + value(1, place, shape=shape)) for place, shape in enumerate(SHAPES)]
    size = sum(np.prod(shape) * tf.as_dtype(dtype).size for shape, dtype in zip(SHAPES, DTYPES, strict=True))
    for sums, sent in either("streams")["all_reduce"]:
        assert sums == [total.tolist() for total in expected]
        # 2(n-1)/n of the bytes.
        assert sent == size


def test_all_gather_concatenates_in_the_order_of_the_replicas(either):
    expected = np.concatenate([value(replica, shape=(2, COLUMNS)) for replica in range(2)])
    for gathered, sent in either("streams")["all_gather"]:
        assert gathered == expected.tolist()
        assert sent == 2 * COLUMNS * 4


def test_slices_of_different_numbers_of_rows_add_up(either):
    expected = np.zeros((11, COLUMNS))
    for replica, rows in enumerate(ROWS):
        for row in range(rows):
            expected[10 - row] += value(replica, shape=(max(ROWS), COLUMNS))[row]
    for replica, (total, sent) in enumerate(either("streams")["all_reduce_slices"]):
        assert total == expected.tolist()
        # Each row is COLUMNS numbers of float32 and an index of int32.
        assert sent == ROWS[replica] * (COLUMNS * 4 + 4)


def test_bytes_of_all_collectives_add_up(either):
    gathered, slices, summed = 2 * COLUMNS * 4, 2 * (COLUMNS * 4 + 4), 6 * 4
    assert either("streams")["one after the other"] == [gathered + slices + summed] * 2


def test_collectives_of_different_streams_have_orders_of_their_own(two_workers):
    for orders in two_workers("streams")["orders"]:
        assert orders == {"two tensors": 2, "six tensors": STREAMS, "stock": 1}


def test_unexpected_launchers_are_told_and_the_sums_are_right_without_streams(two_workers):
    expected = [(value(0, place, shape=shape) + value(1, place, shape=shape)) for place, shape in enumerate(SHAPES)]
    for changed in two_workers("streams")["changed"]:
        assert changed["stock"] == ""
        assert changed["stock lines"] == []
        assert changed["difference"] == "CollectiveAllReduce has no list of launchers"
        (line,) = changed["lines"]
        assert "sent one after another instead of 4 at a time" in line
        assert line.endswith(changed["difference"])
        ((sums, _),) = changed["sums"]
        assert sums == [total.tolist() for total in expected]
        assert changed["orders"] == 1


class _Launcher:
    def __init__(self, group_key, group_size, collective_keys, device, options):
        self._group_key, self._group_size, self._collective_keys = group_key, group_size, collective_keys
        self._device, self._options, self._ordering_token = device, options, None
        self.all_reduce = self.all_gather = None


class _LauncherOfAnotherTensorFlow(_Launcher):
    def __init__(self, group_key, group_size, device):
        super().__init__(group_key, group_size, None, device, None)


def _strategy(launchers):
    return SimpleNamespace(extended=SimpleNamespace(_cross_device_ops=SimpleNamespace(_launchers=launchers)))


def _without(name):
    launcher = _Launcher(1, 2, None, "CPU:0", None)
    delattr(launcher, name)
    return launcher


@pytest.mark.parametrize(
    ("strategy", "difference"),
    [
        (_strategy([_Launcher(1, 2, None, "CPU:0", None)]), ""),
        (SimpleNamespace(extended=SimpleNamespace()), "CollectiveAllReduce has no list of launchers"),
        (_strategy([]), "CollectiveAllReduce has no list of launchers"),
        (
            _strategy([_LauncherOfAnotherTensorFlow(1, 2, "CPU:0")]),
            "_LauncherOfAnotherTensorFlow takes group_key, group_size, device",
        ),
        (_strategy([_without("_ordering_token")]), "_Launcher has no _ordering_token"),
        (_strategy([_without("all_gather")]), "_Launcher has no all_gather"),
    ],
)
def test_launchers_are_compared_with_the_expected_ones(strategy, difference, caplog):
    assert unexpected_launchers(strategy) == difference
    with caplog.at_level("WARNING", logger="tfdist"):
        warn_unless_streams(strategy)
    assert [record.getMessage().endswith(difference) for record in caplog.records] == [True] * bool(difference)


def test_one_replica_sends_nothing():
    def step():
        streams = Streams()
        tensor = tf.constant([[1.0, 2.0]])
        slices = tf.IndexedSlices(tensor, tf.constant([3]), tf.constant([5, 2]))
        (total,) = streams.all_reduce([tensor])
        assert streams.all_reduce_slices(slices) is slices
        return total, streams.all_gather(tensor), tf.constant(streams.sent)

    total, gathered, sent = tf.distribute.OneDeviceStrategy("CPU:0").run(tf.function(step))
    assert total.numpy().tolist() == gathered.numpy().tolist() == [[1.0, 2.0]]
    assert sent.numpy() == 0
