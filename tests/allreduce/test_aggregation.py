"""sum_gradients: sums of dense and sparse gradients over two replicas."""

from __future__ import annotations

import pytest


@pytest.fixture
def totals(two_replicas):
    return two_replicas("sums")


def test_every_replica_gets_the_sums_in_the_order_given_of_any_dtype_and_none_for_none(totals):
    # The program asserts that the third sum is None, and leaves it out.
    assert totals["dense"] == [[[3, 3], 3, [[30]] * 3, 3]] * 2


def test_rows_of_slices_add_up_and_stay_slices(totals):
    assert totals["sparse"] == [[[2, 2], [10, 10], [20, 20], [0, 0]]] * 2
