"""Accumulation: an update after several passes, with the mean of each replica's gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.allreduce.programs.accumulation import ALWAYS, NEVER, ONCE, PASSES, ROWS, SHAPE, SPARSE, UPDATES
from tests.allreduce.programs.replicas import value


@pytest.fixture
def found(two_replicas):
    (found,) = two_replicas("accumulation")["all"]
    return found


def test_an_update_follows_the_last_pass_alone(found):
    done = [number + (position == PASSES - 1) for number in range(UPDATES) for position in range(PASSES)]
    assert found["updates"] == [[count] * 2 for count in done]


def _given(number, replica, place):
    return [value(number, position, replica, place, shape=SHAPE) for position in range(PASSES)]


@pytest.mark.parametrize("number", range(UPDATES))
@pytest.mark.parametrize("replica", range(2))
def test_each_replica_has_the_mean_of_its_own_gradients(found, number, replica):
    means = found["means"][number]
    sparse = np.zeros(SHAPE)
    for gradient in _given(number, replica, SPARSE):
        np.add.at(sparse, ROWS, gradient[: len(ROWS)])
    expected = {
        ALWAYS: sum(_given(number, replica, ALWAYS)) / PASSES,
        # Its pass counts, and the passes without it do too.
        ONCE: _given(number, replica, ONCE)[1] / PASSES,
        SPARSE: sparse / PASSES,
    }
    for place, mean in expected.items():
        np.testing.assert_allclose(means[place][replica], mean, rtol=1e-6)


def test_a_variable_without_any_gradient_stays_without(found):
    assert found["without"] == [NEVER]
