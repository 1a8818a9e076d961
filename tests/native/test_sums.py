"""Sums of the engine, compared with numpy: their order, their rounding, and long messages."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tests.native.ranks import all_reduce, connected, native_library

KIB = 1 << 10


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


def numbers(ranks: int, elements: int, dtype: type) -> list[np.ndarray]:
    """Returns numbers of very different size, whose sum depends on the order."""
    rng = np.random.default_rng(elements)
    exponents = rng.integers(-12, 12, [ranks, elements])
    return list((rng.normal(size=[ranks, elements]) * 2.0**exponents).astype(dtype))


def added_up(arrays: list[np.ndarray]) -> np.ndarray:
    """Returns the sum in the order of the ranks; short floats are added up in float32, and rounded once."""
    dtype = arrays[0].dtype
    wide = np.float32 if dtype.itemsize == 2 else dtype
    total = arrays[0].astype(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        for array in arrays[1:]:
            total = total + array.astype(wide)
        return total.astype(dtype)


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("ranks", [3, 4])
def test_float32_is_added_up_in_the_order_of_the_ranks(ranks: int, hosts: int) -> None:
    with connected(ranks, hosts=hosts) as communicators:
        for elements in (1, 7, 8 * KIB // 4, 8 * KIB // 4 + 1, 5003, 64 * KIB // 4):
            arrays = numbers(ranks, elements, np.float32)
            expected = added_up(arrays)
            if elements > 1000:
                assert bits(expected) != bits(added_up(arrays[::-1])), "the order makes no difference"
            for total in all_reduce(communicators, arrays, tag=elements):
                assert bits(total) == bits(expected)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_all_ranks_have_the_same_bits_of_long_sums(dtype: type, hosts: int) -> None:
    with connected(4, hosts=hosts) as communicators:
        arrays = numbers(4, 300_001, dtype)
        first, *others = all_reduce(communicators, arrays)
    assert all(bits(other) == bits(first) for other in others)
    if hosts == 1:
        assert bits(first) == bits(added_up(arrays))
    exact = np.sum([array.astype(np.float64) for array in arrays], axis=0)
    largest = np.max(np.abs([array.astype(np.float64) for array in arrays]), axis=0)
    # Each sum of two hosts is rounded, and so is their sum.
    assert np.all(np.abs(first.astype(np.float64) - exact) <= 8 * float(ml_dtypes.finfo(dtype).eps) * largest)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_are_rounded_once_to_the_nearest(dtype: type) -> None:
    with connected(3) as communicators:
        arrays = numbers(3, 4099, dtype)
        # Halves between two neighbours are rounded to the even one, and the small third summand decides others.
        one, half = 1.0, float(ml_dtypes.finfo(dtype).eps) / 2
        small = half / 64
        for place, row in enumerate([(one, half, 0), (one, half, small), (one, half, -small), (one, small, half)]):
            for array, value in zip(arrays, row, strict=True):
                array[place] = value
        expected = added_up(arrays)
        assert [float(value) for value in expected[:3]] == [1.0, 1.0 + 2 * half, 1.0]
        for total in all_reduce(communicators, arrays):
            assert bits(total) == bits(expected)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_infinity_and_nan_are_kept_and_large_sums_overflow(dtype: type) -> None:
    inf, nan, largest = np.inf, np.nan, float(ml_dtypes.finfo(dtype).max)
    rows = [(inf, 1, 2), (-inf, 1, 2), (inf, -inf, 2), (nan, 1, 2), (1, nan, inf), (largest, largest, 1), (1, 2, -0.0)]
    for repeats in (1, 3001):
        arrays = [np.tile(np.array([row[rank] for row in rows], dtype), repeats) for rank in range(3)]
        expected = added_up(arrays).astype(np.float64)
        assert np.isnan(expected[2:5]).all() and np.isposinf(expected[5]) and expected[6] == 3
        with connected(3) as communicators:
            for total in all_reduce(communicators, arrays):
                np.testing.assert_array_equal(total.astype(np.float64), expected)


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "elements"),
    [(np.float32, 1_000_003), (np.int32, 2_500_001), (np.float64, 786_433), (np.float16, 999_999)],
)
def test_messages_of_several_fragments_are_right(dtype: type, elements: int, hosts: int) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-300, 300, elements).astype(dtype) for _ in range(3)]
    with connected(3, hosts=hosts) as communicators:
        for total in all_reduce(communicators, arrays):
            np.testing.assert_array_equal(total, arrays[0] + arrays[1] + arrays[2])
