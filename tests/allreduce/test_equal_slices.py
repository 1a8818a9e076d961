"""Slices of the same rows of all replicas are added up, unless the rows depend on the batch."""

from __future__ import annotations

import numpy as np
import pytest

SUMS = ("sum_gradients", "streams")


@pytest.fixture
def found(two_replicas):
    return two_replicas("equal_slices")


def expected(rows, *, added_up):
    """Returns the dense sum and the sum of squares of slices, computed by numpy."""
    values = [1 + np.arange(len(own)) + 10 * replica for replica, own in enumerate(rows)]
    dense = np.zeros(5)
    for own, value in zip(rows, values, strict=True):
        np.add.at(dense, own, value)
    squares = np.square(sum(values)) if added_up else np.square(np.concatenate(values))
    return [[dense.tolist(), float(squares.sum())]] * 2


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize(("name", "rows"), [("positions", [0, 1, 2]), ("a constant", [4, 0, 4])])
def test_rows_that_do_not_depend_on_the_batch_are_added_up(found, total, name, rows):
    assert found[f"{total}, {name}"] == expected([rows, rows], added_up=True)


@pytest.mark.parametrize("total", SUMS)
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("words", [[4, 0, 4], [4, 0, 4]]),
        ("rows of the replica", [[0, 1, 2], [1, 2, 3]]),
        ("other numbers of rows", [[0, 1], [0, 1, 2]]),
        ("no rows on the first replica", [[], [0]]),
    ],
)
def test_other_slices_stay_apart(found, total, name, rows):
    rows = [np.array(own, int) for own in rows]
    assert found[f"{total}, {name}"] == expected(rows, added_up=False)
