"""The number of rows that a replica has, and its share of the global batch."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.keras_compat.losses.global_batch import fraction, global_batch, rows_of
from tfdist.keras_compat.losses.rule import StepRule


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (lambda: tf.zeros([5, 2]), 5),
        (lambda: (None, {"b": tf.zeros([3]), "a": tf.zeros([3, 1])}), 3),
        (lambda: (tf.ragged.constant([[1, 2], [3]]), tf.zeros([2])), 2),
        (lambda: tf.sparse.from_dense(tf.eye(4)), 4),
        (lambda: tf.zeros([0, 7]), 0),
        (lambda: (tf.zeros([6, 2]), tf.zeros([4, 1])), 4),
        (lambda: (tf.zeros([6, 2]), {"b": tf.zeros([]), "c": tf.zeros([4])}, tf.zeros([6])), 4),
        (lambda: (tf.zeros([6, 2]), tf.zeros([]), tf.zeros([4])), 6),
        (lambda: (tf.zeros([6, 2]), None, tf.zeros([4])), 6),
    ],
    ids=["tensor", "nested", "ragged", "sparse", "empty", "targets", "nested targets", "scalar target", "no target"],
)
def test_the_rows_of_a_batch_are_counted(data, rows):
    assert float(rows_of(data())) == rows


PROGRAM = """
import json
import tensorflow as tf
from tfdist import create_strategy
from tfdist.keras_compat.losses.global_batch import current_batch, global_batch
from tfdist.keras_compat.losses.rule import StepRule

strategy = create_strategy("mirrored", devices=2)
rows = strategy.experimental_distribute_values_from_function(
    lambda context: tf.constant([3, 1][context.replica_id_in_sync_group])
)


def step(count):
    with global_batch(tf.zeros([count, 2]), StepRule("auto", "the step")):
        return current_batch().rows, current_batch().total, current_batch().share()


values = tf.function(strategy.run)(step, args=(rows,))
assert current_batch() is None
print("BATCH", json.dumps([[float(v) for v in strategy.experimental_local_results(value)] for value in values]))
"""


def test_each_replica_has_its_share_of_the_rows_only_within_the_context(children):
    assert "BATCH [[3.0, 1.0], [4.0, 4.0], [0.75, 0.25]]" in children.run(PROGRAM).out


def test_the_share_is_zero_if_no_replica_has_rows():
    with global_batch(tf.zeros([0, 2]), StepRule("auto", "the step")) as batch:
        assert float(batch.share()) == 0


def test_the_share_has_the_precision_of_its_dtype():
    with global_batch(tf.zeros([5, 2]), StepRule("auto", "the step")) as batch:
        assert fraction(tf.constant(1.0), batch.rows + 1, tf.float64).numpy() == 1 / 6
        assert fraction(tf.constant(1.0), batch.rows + 1, tf.float16).dtype == tf.float16
