"""Options and variables that LAMB, LARS and MomentumCorrectedSGD refuse."""

from __future__ import annotations

import re

import pytest
import tensorflow as tf

from tests.optimizers.cases import BOTH
from tfdist.optimizers import LAMB, LARS, MomentumCorrectedSGD


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (LAMB, {"beta_1": 1.0}, "expected beta_1 to be from 0 to below 1, received 1.0"),
        (LAMB, {"beta_2": -0.1}, "expected beta_2 to be from 0 to below 1, received -0.1"),
        (LAMB, {"epsilon": 0.0}, "expected epsilon above 0, received 0.0."),
        (LAMB, {"beta_2": 1 - 1e-9}, "expected beta_2 to be from 0 to below 1, received 0.999999999"),
        (MomentumCorrectedSGD, {"weight_decay": -1.0}, "expected weight_decay to be 0 or more, received -1.0"),
        (LAMB, {"weight_decay": -0.1}, "expected weight_decay to be 0 or more, received -0.1"),
        (LAMB, {"min_trust_ratio": 2.0, "max_trust_ratio": 1.0}, "expected 0 <= min_trust_ratio < max_trust_ratio"),
        (LARS, {"momentum": 1.0}, "expected momentum to be from 0 to below 1, received 1.0"),
        (LARS, {"eeta": 0.0}, "expected eeta above 0 and epsilon of 0 or more, received 0.0 and 0.0"),
        (LARS, {"max_trust_ratio": 0.0}, "expected 0 <= min_trust_ratio < max_trust_ratio, received None and 0.0"),
        (MomentumCorrectedSGD, {"momentum": 1.5}, "expected momentum to be from 0 to below 1, received 1.5"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        kind(0.1, **options)


@BOTH
def test_a_variable_in_shards_is_refused(kind):
    parts = [tf.Variable([1.0], name="table/part_0"), tf.Variable([2.0], name="table/part_1")]
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    ShardedVariable(parts, name="table")
    with pytest.raises(ValueError, match=r"^expected variables that are not sharded, received 'table/part_0'"):
        kind(0.1).build(parts)
