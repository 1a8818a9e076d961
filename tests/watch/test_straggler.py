"""find_straggler names a slow worker, and none in a cluster that is balanced or waits for its network."""

from __future__ import annotations

import pytest

from tfdist.watch.straggler import Shares, find_straggler


def shares(waiting: float, *, batch: float = 0.0, callbacks: float = 0.0) -> Shares:
    return Shares(batch=batch, sum=waiting - batch, callbacks=callbacks)


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize(
    ("others", "own", "where"),
    [
        (shares(0.75, batch=0.75), shares(0.0), "its data"),
        (shares(0.75), shares(0.0), "the computation of its step"),
        (shares(0.75, batch=0.75), shares(0.0, callbacks=0.75), "its callbacks"),
    ],
)
def test_a_worker_at_a_quarter_of_the_speed_is_named(slow, others, own, where):
    found = find_straggler([own if worker == slow else others for worker in range(4)], factor=2.0)
    assert (found.worker, found.where) == (slow, where)
    assert found.ratio == pytest.approx(4.0)


@pytest.mark.parametrize(
    "known",
    [
        [shares(0.0), shares(0.0)],
        # Every worker waits for the network.
        [shares(0.9), shares(0.95)],
        [shares(0.3), shares(0.5)],
        # Not known of every worker.
        [shares(0.0), None, shares(0.75)],
        [shares(0.0)],
        [None],
    ],
)
def test_balanced_workers_are_not_named(known):
    assert find_straggler(known, factor=2.0) is None


def test_the_factor_decides():
    known = [shares(0.6), shares(0.0)]
    assert find_straggler(known, factor=2.0).worker == 1
    assert find_straggler(known, factor=3.0) is None
