"""Bytes of one operation are not stuck behind those of another one that a rank cannot take yet."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.ranks import RECEIVE, connected, native_library, start, wait

ALL_GATHER, SEND = 3, 5
FIRST, MESSAGE, LATER = 1, 2, 3
ENTRIES = 1 << 18
pytestmark = pytest.mark.usefixtures("_library")


@pytest.fixture(scope="module")
def _library():
    with native_library():
        yield


@pytest.mark.parametrize("hosts", [1, 3], ids=["shared memory", "tcp"])
def test_an_operation_that_a_rank_starts_after_a_message_does_not_hold_up_the_message(hosts):
    """Rank 1 starts the later sum after the message of rank 0, which is behind summands that wait for those of rank 2.

    Rank 2 has begun the later sum before the first one, so that its summands of the first one are behind it.
    """
    first = [np.full(ENTRIES, rank + 1.0, np.float32) for rank in range(3)]
    later = [np.full(3, 10.0 * (rank + 1), np.float32) for rank in range(3)]
    sums, later_sums = [np.empty_like(one) for one in first], [np.empty_like(one) for one in later]
    message, received = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with connected(3, hosts=hosts) as ranks:

        def sum_later(rank: int) -> int:
            return start(ranks[rank], later[rank], later_sums[rank], tag=LATER)

        numbers = [sum_later(2)]
        numbers += [start(ranks[rank], first[rank], sums[rank], tag=FIRST) for rank in (2, 0, 1)]
        sent = start(ranks[0], message, received, kind=SEND, tag=MESSAGE, peer=1)
        arrived = start(ranks[1], received, received, kind=RECEIVE, tag=MESSAGE, peer=0)
        for rank, number in ((0, sent), (1, arrived)):
            assert wait(number) == (0, "")
            numbers.append(sum_later(rank))
        assert [wait(number) for number in numbers] == [(0, "")] * len(numbers)
    np.testing.assert_array_equal(received, message)
    np.testing.assert_array_equal(sums, np.full([3, ENTRIES], 6, np.float32))
    np.testing.assert_array_equal(later_sums, np.full([3, 3], 60, np.float32))


@pytest.mark.parametrize("hosts", [1, 2], ids=["shared memory", "tcp"])
def test_sums_in_place_that_two_ranks_start_in_opposite_orders_do_not_wait_for_each_other(hosts):
    """A sum in place sends before it adds up. The gathered rows between the two sums fill both streams."""
    rows = 1 << 22
    small = [[np.full(100, rank + tag, np.float32) for rank in range(2)] for tag in (FIRST, LATER)]
    given = [np.full(rows, rank + 1.0, np.float32) for rank in range(2)]
    gathered = [np.zeros(2 * rows, np.float32) for _ in range(2)]
    with connected(2, hosts=hosts) as ranks:
        numbers = []
        for rank, order in enumerate(((0, 1), (1, 0))):
            for place, which in enumerate(order):
                tag, values = (FIRST, LATER)[which], small[which][rank]
                numbers.append(start(ranks[rank], values, values, tag=tag))
                if not place:
                    number = start(ranks[rank], given[rank], gathered[rank], kind=ALL_GATHER, tag=MESSAGE)
                    numbers.append(number)
        assert [wait(number) for number in numbers] == [(0, "")] * len(numbers)
    for tag, sums in zip((FIRST, LATER), small, strict=True):
        np.testing.assert_array_equal(sums, np.full([2, 100], 2 * tag + 1, np.float32))
    np.testing.assert_array_equal(gathered, [np.repeat([1.0, 2.0], rows)] * 2)
