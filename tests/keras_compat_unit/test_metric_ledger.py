"""The tally that replaces a metric's variable, and the ledger that adds up the contributions of steps."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from tfdist.keras_compat.parameter_server.metric_ledger import MetricLedger, Slot, Tally


@pytest.fixture
def tally(four_cpus):
    tally = Tally(tf.Variable([0.0, 0.0, 0.0]))
    tally.assign([1.0, 2.0, 4.0])
    return tally


def test_a_metric_computes_with_a_tally_as_with_a_tensor(tally):
    np.testing.assert_array_equal(tally[1:] * 2, [4.0, 8.0])
    np.testing.assert_array_equal(1 / tally, [1.0, 0.5, 0.25])
    np.testing.assert_array_equal(tally + tally, [2.0, 4.0, 8.0])
    np.testing.assert_array_equal(tf.reduce_sum(tally), 7.0)
    np.testing.assert_array_equal(np.asarray(tally), [1.0, 2.0, 4.0])
    assert float(Tally(tf.Variable(0.0))) == 0.0


def test_assignments_change_a_tally_and_return_the_new_value(tally):
    np.testing.assert_array_equal(tally.assign_add([1.0, 1.0, 1.0]), [2.0, 3.0, 5.0])
    np.testing.assert_array_equal(tally.assign_sub([2.0, 2.0, 2.0]), [0.0, 1.0, 3.0])
    np.testing.assert_array_equal(tally.numpy(), [0.0, 1.0, 3.0])


def test_the_ledger_adds_the_contributions_of_steps_and_writes_the_sums_back(four_cpus):
    total, count = tf.Variable(10.0), tf.Variable(3, dtype=tf.int64)
    metric = types.SimpleNamespace(total=total, count=count)
    ledger = MetricLedger([Slot(metric, "total"), Slot(metric, "count")])
    ledger.open()

    @tf.function
    def step():
        with ledger.fresh() as tallies:
            metric.total.assign_add(2.5)
            metric.count.assign_add(1)
        return ledger.pack(tallies)

    for _ in range(4):
        ledger.add([packed.numpy() for packed in step()])
    assert float(metric.total) == 20.0
    assert total.numpy() == 10.0
    ledger.close()
    assert metric.total is total
    assert (total.numpy(), count.numpy()) == (20.0, 7)


def test_a_step_that_fails_does_not_change_the_running_values(four_cpus):
    metric = types.SimpleNamespace(total=tf.Variable(5.0))
    ledger = MetricLedger([Slot(metric, "total")])
    ledger.open()
    with pytest.raises(RuntimeError, match="broken"), ledger.fresh():
        metric.total.assign(100.0)
        raise RuntimeError("broken")
    assert float(metric.total) == 5.0
