"""A second thread sends large messages through TCP, if there are cores for it: sums keep their bits."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import numpy as np
import pytest

from tests.native.ranks import DTYPES, RECEIVE, all_reduce, connected, native_library, start, wait
from tfdist.allreduce.native import library as loaded

VARIABLE = "TFDIST_NATIVE_SENDER_BYTES"
# As many hosts as ranks: all of them are connected by TCP.
RANKS = 3
SEND = 5


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


def arrays(dtype: np.dtype, elements: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [(100 * random.standard_normal(elements)).astype(dtype) for _ in range(RANKS)]


def added_up(summands: list[np.ndarray]) -> np.ndarray:
    """Returns the sum in the order of the ranks; that of floats of 16 bits is rounded once."""
    is_short = summands[0].dtype.itemsize == 2
    total = summands[0].astype(np.float32) if is_short else summands[0].copy()
    for summand in summands[1:]:
        total = total + summand.astype(total.dtype)
    return total.astype(summands[0].dtype)


@pytest.mark.parametrize("value", ["0", "65536"])
@pytest.mark.parametrize("elements", [1, 5000, 1_000_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_a_second_thread_have_the_bits_of_a_sum_in_the_order_of_ranks(dtype, elements, value, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    summands = arrays(dtype, elements)
    expected = added_up(summands).tobytes()
    with connected(RANKS, hosts=RANKS) as communicators:
        assert [total.tobytes() for total in all_reduce(communicators, summands)] == [expected] * RANKS
        # A sum in place overwrites what is being sent.
        numbers = [start(one, array, array) for one, array in zip(communicators, summands, strict=True)]
        assert [wait(number) for number in numbers] == [(0, "")] * RANKS
        assert [array.tobytes() for array in summands] == [expected] * RANKS


def handed_over(elements: int, *, hosts: int = RANKS) -> list[tuple[int, int]]:
    """Returns how many bytes the second thread of each rank has sent of a sum, and how many bytes the rank has sent."""
    function = loaded.library().tfdist_bytes_handed_over
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_int64]
    with connected(RANKS, hosts=hosts) as communicators:
        all_reduce(communicators, arrays(np.dtype("float32"), elements))
        return [(function(one.number), one.bytes_sent) for one in communicators]


# A rank sends a third of the array to each other one, and the sum of its own third.
KIB_64 = RANKS * (64 << 10) // 4


@pytest.mark.parametrize(
    ("value", "hosts", "elements", "is_sent"),
    [
        ("0", RANKS, 1, True),
        ("65536", RANKS, KIB_64, True),
        ("65536", RANKS, KIB_64 - RANKS, False),
        # Beyond all sizes.
        (str(2**64 - 1), RANKS, 1_000_000, False),
        # Ranks of one host share memory.
        ("0", 1, 1_000_000, False),
    ],
)
def test_messages_of_as_many_bytes_are_sent_by_the_second_thread(value, hosts, elements, is_sent, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    for second, all_bytes in handed_over(elements, hosts=hosts):
        assert all_bytes > 0
        assert second == (all_bytes if is_sent else 0)


@pytest.mark.parametrize("unset", [None, ""])
def test_without_the_variable_the_second_thread_sends_if_each_rank_has_four_cores(unset, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if unset is not None:
        monkeypatch.setenv(VARIABLE, unset)
    has_cores = len(os.sched_getaffinity(0)) >= 4 * RANKS
    assert [second > 0 for second, _ in handed_over(1_000_000)] == [has_cores] * RANKS


def test_a_rank_that_ends_after_its_part_is_no_loss(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0")
    value = np.ones(25_000, np.float32)
    for _ in range(300):
        with connected(2, hosts=2) as (first, second):
            out = np.empty_like(value)
            receives = start(second, value, out, kind=RECEIVE, peer=0)
            sends = start(first, value, out, kind=SEND, peer=1)
            assert wait(receives) == (0, "")
            second.close()
            assert wait(sends) == (0, "")


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "64K", "18446744073709551616"])
def test_another_value_of_the_variable_is_refused(value, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    message = f"expected a number of bytes in {VARIABLE}, received '{value}'"
    with pytest.raises(OSError, match=message), connected(RANKS, hosts=RANKS):
        pass
