"""A second thread sends large messages through TCP, if there are cores for it: sums keep their bits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.native.ranks import DTYPES, all_reduce, connected, native_library, start, wait

VARIABLE = "TFDIST_NATIVE_SENDER_BYTES"
# As many hosts as ranks: all of them are connected by TCP.
RANKS = 3


@pytest.fixture(autouse=True, scope="module")
def _library() -> Iterator[None]:
    with native_library():
        yield


def senders() -> set[str]:
    """Returns the numbers of the second threads of this process. One that has ended may be there for a moment."""
    found = set()
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text() == "tfdist-sender\n":
                found.add(path.parent.name)
    return found


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


@pytest.mark.parametrize("handed_over", ["0", "65536"])
@pytest.mark.parametrize("elements", [1, 5000, 1_000_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_of_a_second_thread_have_the_bits_of_a_sum_in_the_order_of_ranks(
    dtype, elements, handed_over, monkeypatch
):
    monkeypatch.setenv(VARIABLE, handed_over)
    summands = arrays(dtype, elements)
    expected = added_up(summands).tobytes()
    with connected(RANKS, hosts=RANKS) as communicators:
        assert [total.tobytes() for total in all_reduce(communicators, summands)] == [expected] * RANKS
        # A sum in place overwrites what is being sent.
        numbers = [start(one, array, array) for one, array in zip(communicators, summands, strict=True)]
        assert [wait(number) for number in numbers] == [(0, "")] * RANKS
        assert [array.tobytes() for array in summands] == [expected] * RANKS


def senders_of_a_sum(*, hosts: int = RANKS) -> int:
    """Returns how many second threads there are after a sum of 4 MB. Each of them would have sent something."""
    before = senders()
    with connected(RANKS, hosts=hosts) as communicators:
        all_reduce(communicators, arrays(np.dtype("float32"), 1_000_000))
        return len(senders() - before)


@pytest.mark.parametrize(
    ("value", "hosts", "expected"),
    [
        ("0", RANKS, RANKS),
        ("65536", RANKS, RANKS),
        # Beyond all sizes.
        (str(2**64 - 1), RANKS, 0),
        # Ranks of one host share memory.
        ("0", 1, 0),
    ],
)
def test_each_rank_that_has_tcp_and_messages_for_it_has_a_second_thread(value, hosts, expected, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    assert senders_of_a_sum(hosts=hosts) == expected


@pytest.mark.parametrize("unset", [None, ""])
def test_without_the_variable_there_is_a_second_thread_if_each_rank_has_four_cores(unset, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    if unset is not None:
        monkeypatch.setenv(VARIABLE, unset)
    has_cores = len(os.sched_getaffinity(0)) >= 4 * RANKS
    assert senders_of_a_sum() == (RANKS if has_cores else 0)


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "64K", "18446744073709551616"])
def test_another_value_of_the_variable_is_refused(value, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    message = f"expected a number of bytes in {VARIABLE}, received '{value}'"
    with pytest.raises(TimeoutError, match=message), connected(RANKS, hosts=RANKS):
        pass
