"""Sums of two replicas, in a process of its own: strategies of one process share the instances of its collectives."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import json
import tensorflow as tf
from tfdist import create_strategy
from tfdist.allreduce import sum_gradients

strategy = create_strategy("mirrored", devices=2)


def on_replicas(function):
    def step():
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        return [None if total is None else tf.cast(total, tf.float64) for total in sum_gradients(function(replica))]

    totals = tf.function(strategy.run)(step)
    return [
        None if total is None else [value.numpy().tolist() for value in strategy.experimental_local_results(total)]
        for total in totals
    ]


def dense(replica):
    one = replica + 1.0
    return [tf.fill([2], one), tf.cast(one, tf.bfloat16), None, tf.fill([3, 1], 10.0 * one), tf.cast(one, tf.float64)]


def sparse(replica):
    slices = tf.IndexedSlices(
        values=tf.stack([tf.ones([2]), tf.fill([2], 10.0 * (replica + 1.0))]),
        indices=tf.stack([tf.constant(0, tf.int64), tf.cast(replica, tf.int64) + 1]),
        dense_shape=tf.constant([4, 2], tf.int64),
    )
    total = sum_gradients([slices, replica])[0]
    assert isinstance(total, tf.IndexedSlices)
    return [tf.convert_to_tensor(total) / 2, slices.values[0]]


print("TOTALS", json.dumps({"dense": on_replicas(dense), "sparse": on_replicas(sparse)}))
"""


@pytest.fixture(scope="module")
def totals(module_children):
    ended = module_children.run(PROGRAM)
    assert ended.code == 0
    return json.loads(next(line for line in ended.out.splitlines() if line.startswith("TOTALS"))[7:])


def test_every_replica_gets_the_sums_in_the_order_given_of_any_dtype_and_none_for_none(totals):
    assert totals["dense"] == [[[3, 3]] * 2, [3, 3], None, [[[30]] * 3] * 2, [3, 3]]


def test_rows_of_slices_add_up_and_stay_slices(totals):
    # Halved, and added up once more over the two replicas.
    assert totals["sparse"][0] == [[[2, 2], [10, 10], [20, 20], [0, 0]]] * 2
