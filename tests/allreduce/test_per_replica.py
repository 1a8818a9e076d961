"""PerReplica: every replica has a value of its own, which a checkpoint gives back to it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.allreduce.programs.per_replica import COUNT, SHAPE
from tests.allreduce.programs.replicas import value

OWN = [value(replica, shape=SHAPE) for replica in range(2)]


@pytest.fixture
def found(two_replicas):
    return two_replicas("per_replica")


def test_each_replica_reads_what_it_has_written(found):
    assert found["written"] == [one.tolist() for one in OWN]


def test_values_are_read_outside_of_replicas(found):
    (outside,) = found["outside"]
    assert outside["local"] == OWN[0].tolist()
    assert outside["local values"] == outside["values"] == [one.tolist() for one in OWN]


def test_a_checkpoint_gives_each_replica_its_own_value(found):
    assert not np.any(found["erased"])
    assert found["restored"] == [[one.tolist(), COUNT] for one in OWN]


def test_fewer_replicas_share_the_sum_and_copy_what_is_shared(found):
    ((held, count),) = found["on one replica"]
    assert held == [(OWN[0] + OWN[1]).tolist()]
    assert count == [COUNT]


def test_more_replicas_get_equal_parts_of_the_sum_and_copy_what_is_shared(found):
    assert found["of one replica"] == [[((OWN[0] + OWN[1]) / 2).tolist(), COUNT]] * 2
