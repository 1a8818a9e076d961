"""GradientPath: gradients of every kind come out summed; what is compressed leaves the rest of it for later."""

from __future__ import annotations

import numpy as np
import pytest

from tests.allreduce.programs.path import (
    COMPRESSED,
    DENSITY,
    DOUBLE,
    DTYPES,
    LARGE,
    MISSING,
    OTHER,
    ROWS,
    SCALE,
    SHAPES,
    SMALL,
    SPARSE,
    gradient,
)
from tfdist.allreduce import Traffic

GIVEN = [place for place in range(len(SHAPES)) if place != MISSING]
SIZES = {place: int(np.prod(shape)) for place, shape in enumerate(SHAPES)}


def whole(step, place):
    """The sum over replicas of one gradient; the rows of a sparse one in their places."""
    if place == SPARSE:
        total = np.zeros(SHAPES[SPARSE])
        for replica in range(2):
            np.add.at(total, ROWS, gradient(replica, step, SPARSE)[: len(ROWS)])
        return total
    return gradient(0, step, place) + gradient(1, step, place)


def sent(corrected):
    """The elements that top-k chooses, at their places, and zeros."""
    flat = corrected.ravel()
    chosen = np.argsort(-np.abs(flat))[: int(np.ceil(DENSITY * flat.size))]
    result = np.zeros_like(flat)
    result[chosen] = flat[chosen]
    return result.reshape(corrected.shape)


class Oracle:
    """Error feedback around top-k, as numpy does it."""

    def __init__(self):
        self.residuals = {place: [np.zeros(SHAPES[place], np.float32)] * 2 for place in COMPRESSED}

    def total(self, step, place):
        corrected = [gradient(replica, step, place) + self.residuals[place][replica] for replica in range(2)]
        self.residuals[place] = [one - sent(one) for one in corrected]
        return sum(sent(one) for one in corrected)

    def step(self, number):
        return [self.total(number, place) if place in COMPRESSED else whole(number, place) for place in GIVEN]


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def close_residuals(found, oracle):
    for residuals in found:
        assert sorted(residuals) == sorted(str(place) for place in COMPRESSED)
        for place in COMPRESSED:
            close(residuals[str(place)], oracle.residuals[place])


def test_without_compression_every_kind_of_gradient_is_summed(either):
    found = either("path")
    for sums in found["plain"]:
        close(sums, [whole(0, place) for place in GIVEN])
    assert all(compresses == [False, True] for compresses in found["compresses"])


def test_large_gradients_alone_are_compressed_and_leave_residuals(either):
    found, oracle = either("path"), Oracle()
    for number in range(2):
        expected = oracle.step(number)
        for sums in found[f"step {number}"]:
            close(sums, expected)
        close_residuals(found[f"step {number}, residuals"], oracle)
    # The residual of the first step was part of the second.
    assert np.abs(oracle.residuals[LARGE][0] + sent(gradient(0, 1, LARGE)) - gradient(0, 1, LARGE)).max() > 0.1


@pytest.fixture
def after_two_steps():
    oracle = Oracle()
    for number in range(2):
        oracle.step(number)
    return oracle


def test_residuals_are_kept_without_the_loss_scale(either, after_two_steps):
    found, oracle = either("path"), after_two_steps
    expected = oracle.step(2)
    for sums in found["scaled"]:
        close([np.array(total) / SCALE for total in sums], expected)
    close_residuals(found["scaled, residuals"], oracle)


def test_a_step_that_is_not_finite_on_one_replica_is_so_on_both_and_keeps_the_residuals(either, after_two_steps):
    found, oracle = either("path"), after_two_steps
    oracle.step(2)
    assert [np.isfinite(sums[GIVEN.index(OTHER)]).all() for sums in found["spoilt"]] == [False, False]
    close_residuals(found["spoilt, residuals"], oracle)


def test_some_of_the_gradients_leave_the_residuals_of_the_others_alone(either, after_two_steps):
    found, oracle = either("path"), after_two_steps
    oracle.step(2)
    expected = [whole(4, SMALL), oracle.total(4, OTHER)]
    for sums in found["one of two"]:
        close(sums, expected)
    close_residuals(found["one of two, residuals"], oracle)


def test_traffic_counts_the_bytes_of_a_ring_of_two(either):
    def dense(places):
        # 2(n-1)/n of the bytes.
        return sum(SIZES[place] * np.dtype(DTYPES[place]).itemsize for place in places)

    def chosen(places):
        # A value and a place each, and one element that tells whether all are finite; the other replica gathers them.
        return 8 * (sum(np.ceil(DENSITY * SIZES[place]) for place in places) + 1)

    rows = len(ROWS) * (SHAPES[SPARSE][1] * 4 + 4)
    every_step = dense([SMALL, DOUBLE]) + rows
    for plain, compressed in either("path")["traffic"]:
        assert plain == [0, 0, 0]
        steps, total, uncompressed = compressed
        assert steps == 5
        assert total == 4 * (every_step + chosen(COMPRESSED)) + dense([SMALL]) + chosen([OTHER])
        assert uncompressed == 4 * (every_step + dense(COMPRESSED)) + dense([SMALL, OTHER])


def test_the_ratio_of_traffic():
    assert Traffic(steps=2, sent=25.0, uncompressed=100.0).ratio == 4.0
    assert Traffic(steps=0, sent=0.0, uncompressed=0.0).ratio == 1.0
