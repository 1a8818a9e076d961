"""When steps end in the simulator: closed forms, and loops written for the test."""

from __future__ import annotations

import numpy as np
import pytest

from tfdist.averaging import complete, one_peer_exponential, ring, simulate
from tfdist.averaging.mixing import Mixing

LINK = simulate.Link(latency_seconds=0.01, bytes_per_second=1e6)
NO_LINK = simulate.Link(latency_seconds=0.0, bytes_per_second=float("inf"))


def test_a_ring_sends_2_n_minus_1_parts_of_1_n():
    assert simulate.all_reduce_seconds(1, size=1e6, link=LINK) == 0
    for workers in (2, 5, 1024):
        expected = 2 * (workers - 1) * 0.01 + 2 * (workers - 1) / workers * 3.0
        assert simulate.all_reduce_seconds(workers, size=3e6, link=LINK) == pytest.approx(expected, rel=1e-12)


def test_synchronous_steps_wait_for_the_slowest_worker_and_the_sum():
    machines = simulate.Machines(step_seconds=(1.0, 2.0, 0.5))
    found = simulate.synchronous_times(machines, link=LINK, size=3e6, steps=4)
    np.testing.assert_allclose(found, (2.0 + 4 * (0.01 + 1.0)) * np.arange(1, 5))


def test_synchronous_steps_with_jitter_wait_for_the_slowest_of_each_step():
    machines = simulate.Machines.alike(7, seconds=1.0, slow=2, factor=3.0, jitter=0.5, seed=3)
    found = simulate.synchronous_times(machines, link=NO_LINK, size=1.0, steps=30)
    slowest = [max(machines.seconds(worker, step) for worker in range(7)) for step in range(30)]
    np.testing.assert_allclose(found, np.cumsum(slowest))
    assert len(set(slowest)) == 30


def test_local_steps_wait_for_the_slowest_sum_of_a_round():
    machines = simulate.Machines.alike(4, seconds=1.0, jitter=0.5)
    found = simulate.local_times(machines, link=LINK, size=1e6, steps=7, meetings=(2, 5), meeting_size=2e6)
    took = np.array([[machines.seconds(worker, step) for worker in range(4)] for step in range(7)])
    sums = 6 * 0.01 + 1.5 * 2.0
    first = took[:3].sum(axis=0).max() + sums
    second = first + took[3:6].sum(axis=0).max() + sums
    np.testing.assert_allclose(
        found[[0, 2, 4, 5, 6]],
        [took[0].max(), first, first + took[3:5].sum(axis=0).max(), second, second + took[6].max()],
    )


def test_synchronous_steps_before_start_step_send_gradients_and_later_ones_nothing():
    machines = simulate.Machines.alike(2, seconds=1.0)
    found = simulate.local_times(
        machines, link=NO_LINK, size=1.0, steps=4, meetings=(3,), start_step=2, meeting_size=5.0
    )
    np.testing.assert_allclose(found, [1, 2, 3, 4])
    slow = simulate.Link(latency_seconds=0, bytes_per_second=1.0)
    found = simulate.local_times(machines, link=slow, size=1.0, steps=4, meetings=(3,), start_step=2, meeting_size=5.0)
    np.testing.assert_allclose(found, [2, 4, 5, 11])


@pytest.mark.parametrize("graph", [ring, complete, one_peer_exponential])
def test_gossip_waits_for_the_peers_of_each_step(graph):
    mixing = graph(6)
    machines = simulate.Machines.alike(6, seconds=0.3, slow=1, factor=4, jitter=0.5)
    found = simulate.gossip_times(machines, link=LINK, size=1e5, steps=9, mixing=mixing)
    now = [0.0] * 6
    for step in range(9):
        arrives = [
            begin + 0.01 + 0.1 * len(mixing.sends_to(worker=worker, step=step)) for worker, begin in enumerate(now)
        ]
        now = [
            max(
                now[worker] + machines.seconds(worker, step),
                *(arrives[peer] for peer in mixing.receives_from(worker=worker, step=step)),
            )
            for worker in range(6)
        ]
        assert found[step] == pytest.approx(max(now), rel=1e-12)


def test_workers_without_peers_wait_for_nobody():
    machines = simulate.Machines(step_seconds=(1.0, 3.0))
    found = simulate.gossip_times(machines, link=LINK, size=1e9, steps=3, mixing=Mixing(2, (((0, 1.0),),)))
    assert found.tolist() == [3.0, 6.0, 9.0]


def test_without_jitter_each_step_takes_the_same_time():
    machines = simulate.Machines.alike(3, seconds=0.5, slow=1, factor=4)
    assert [machines.seconds(worker, 9) for worker in range(3)] == [0.5, 0.5, 2.0]
    assert machines.all_seconds(9).tolist() == [0.5, 0.5, 2.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate.Machines(step_seconds=()), "the seconds of a step of each worker, above 0"),
        (lambda: simulate.Machines(step_seconds=(1.0, 0.0)), "the seconds of a step of each worker, above 0"),
        (lambda: simulate.Machines(step_seconds=(1.0,), jitter=-1), "a jitter of 0 or more, received -1"),
        (lambda: simulate.Machines.alike(2, seconds=1.0, slow=3), "from 0 to 2 slow workers, received 3"),
        (lambda: simulate.Link(latency_seconds=0, bytes_per_second=0), "a rate above 0"),
    ],
)
def test_wrong_machines_and_links_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
