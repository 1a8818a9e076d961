"""Values of a replica, which a function of a loop returns, are told from numbers of the global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.verify.loops import _numbers
from tfdist.verify.returned import ReturnedByRun


def numbers_of(function: Any) -> dict[str, float]:
    """Returns the numbers that verify compares of a function, which gets strategy.run and strategy.reduce."""
    known, strategy = ReturnedByRun(), tf.distribute.OneDeviceStrategy("/cpu:0")

    def run(of_replica: Any) -> Any:
        returned = strategy.run(of_replica)
        known.note(returned)
        return returned

    def reduce(value: Any) -> Any:
        return known.reduced(strategy.reduce("SUM", value, axis=None))

    result = tf.function(lambda: function(run, reduce))()
    return _numbers(known.without(result), name="result")


def test_what_run_returns_is_a_value_of_a_replica() -> None:
    assert numbers_of(lambda run, reduce: run(lambda: tf.random.normal([]))) == {}


def test_what_reduce_returns_is_a_number_also_if_one_device_returns_it_as_it_is() -> None:
    assert numbers_of(lambda run, reduce: reduce(run(lambda: tf.constant(2.0)))) == {"result": 2.0}


def test_numbers_beside_values_of_a_replica_keep_their_places() -> None:
    def function(run: Any, reduce: Any) -> Any:
        first, second = run(lambda: (tf.constant(1.0), tf.constant(2.0)))
        return first, reduce(second), tf.constant(3.0)

    assert numbers_of(function) == {"result 2": 2.0, "result 3": 3.0}
