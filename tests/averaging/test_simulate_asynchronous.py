"""Asynchronous SGD of the simulator: counts and versions by hand, closed forms, and a time line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.averaging.problems import EVEN, UNEVEN, Rows, on_one_device
from tfdist.averaging import simulate

SGD = simulate.SGD(0.5)
START = [np.array(0.0)]


def ones(worker, step, weights):
    """A gradient of -1, so that plain SGD adds its rate, scaled by the factor."""
    return [np.array(-1.0)], 1


def own(worker, step, weights):
    return [np.array(-float(10**worker))], 1


def scripted(order, *, gradient=ones, optimizer=SGD, workers=3, **rules):
    return simulate.asynchronous(
        gradient, START, workers=workers, optimizer=optimizer, staleness=simulate.Staleness(**rules), order=order
    )


def test_versions_and_staleness_of_a_scripted_order():
    result = scripted(simulate.pushes([0, 0, 1, 0, 2, 1]))
    assert [arrival.worker for arrival in result.log] == [0, 0, 1, 0, 2, 1]
    assert [arrival.step for arrival in result.log] == [0, 1, 0, 2, 0, 1]
    assert [arrival.pulled for arrival in result.log] == [0, 1, 0, 2, 0, 3]
    assert [arrival.version for arrival in result.log] == [0, 1, 2, 3, 4, 5]
    assert [arrival.staleness for arrival in result.log] == [0, 0, 2, 1, 4, 2]
    assert (result.version, result.applied, result.dropped, result.pending) == (6, 6, 0, 0)
    assert result.histogram() == {0: 2, 1: 1, 2: 2, 4: 1}
    assert float(result.weights[0]) == 3.0


def test_one_over_tau_scales_the_rate_from_a_staleness_of_two_on():
    result = scripted(simulate.pushes([0, 0, 1, 0, 2, 1]), scale="1/tau")
    assert [arrival.factor for arrival in result.log] == [1, 1, 1 / 2, 1, 1 / 4, 1 / 2]
    assert float(result.weights[0]) == 0.5 * 4.25


def test_a_function_scales_the_rate():
    result = scripted(simulate.pushes([0, 0, 1, 0, 2, 1]), scale=lambda tau: 2.0**-tau)
    assert float(result.weights[0]) == 0.5 * (1 + 1 + 1 / 4 + 1 / 2 + 1 / 16 + 1 / 4)


def test_dropped_gradients_change_no_version_and_are_counted_apart():
    computed = []

    def gradient(worker, step, weights):
        computed.append((worker, step))
        return ones(worker, step, weights)

    result = scripted(simulate.pushes([0, 0, 1, 0, 2, 1]), gradient=gradient, drop_above=1)
    # After the drop of worker 1 (staleness 2), worker 0 pulled version 2 and pushes at version 2.
    assert [arrival.staleness for arrival in result.log] == [0, 0, 2, 0, 3, 1]
    assert [arrival.dropped for arrival in result.log] == [False, False, True, False, True, False]
    assert (result.version, result.applied, result.dropped) == (4, 4, 2)
    assert result.histogram() == {0: 3, 1: 1, 2: 1, 3: 1}
    assert result.histogram(dropped=False) == {0: 3, 1: 1}
    assert float(result.weights[0]) == 2.0
    # A dropped step of a worker is not repeated.
    assert computed == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_an_update_of_soft_sync_is_the_mean_of_n_gradients():
    result = scripted(simulate.pushes([0, 1, 2, 0, 1]), gradient=own, soft_sync=2)
    assert [arrival.version for arrival in result.log] == [0, 0, 1, 1, 2]
    assert [arrival.staleness for arrival in result.log] == [0, 0, 1, 1, 1]
    assert (result.version, result.applied, result.pending, result.dropped) == (2, 4, 1, 0)
    assert float(result.weights[0]) == 0.5 * ((1 + 10) / 2 + (100 + 1) / 2)


def test_backup_workers_with_late_gradients_dropped():
    # Three workers, of which each update needs two. Worker 2 is late in the first update. Worker 0 has pulled again
    # before the first update was complete, so that its second gradients are dropped too.
    result = scripted(simulate.pushes([0, 1, 2, 1, 0, 2]), gradient=own, soft_sync=2, drop_above=0)
    assert [arrival.dropped for arrival in result.log] == [False, False, True, False, True, False]
    assert (result.version, result.applied, result.pending, result.dropped) == (2, 4, 0, 2)
    assert float(result.weights[0]) == 0.5 * ((1 + 10) / 2 + (10 + 100) / 2)


def test_factors_of_soft_sync_belong_to_their_gradients():
    result = scripted(simulate.pushes([0, 0, 0, 0, 0, 1]), gradient=own, workers=2, soft_sync=2, scale="1/tau")
    assert [arrival.staleness for arrival in result.log] == [0, 0, 0, 0, 0, 2]
    assert float(result.weights[0]) == pytest.approx(0.5 * (1 + 1 + (1 + 10 / 2) / 2), rel=1e-15)


def test_the_factor_scales_the_rate_of_adam_too():
    adam = simulate.Adam(0.01)
    order = simulate.pushes([0, 0, 0, 1])
    moved = [
        float(scripted(order[:count], optimizer=adam, workers=2, scale="1/tau").weights[0])
        for count in (len(order) - 2, len(order))
    ]
    assert moved[1] - moved[0] == pytest.approx(0.01 / 3, rel=1e-5)


def test_momentum_is_kept_by_the_server():
    result = scripted(simulate.pushes([0, 1, 2]), optimizer=simulate.SGD(1.0, momentum=0.5))
    assert float(result.weights[0]) == 1 + 1.5 + 1.75
    assert float(result.slots["momentum"][0]) == 1.75


def test_one_worker_is_plain_sgd():
    rows = Rows(((4,), (3,)))
    result = simulate.asynchronous(
        rows,
        rows.start(),
        workers=1,
        optimizer=simulate.SGD(0.1, momentum=0.9),
        seconds=lambda worker, step: 1.0,
        steps=20,
    )
    for found, expected in zip(result.weights, on_one_device(rows, steps=20, rate=0.1, momentum=0.9), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_bound_0_and_soft_sync_of_all_workers_is_synchronous_sgd():
    result = simulate.asynchronous(
        EVEN,
        EVEN.start(),
        workers=3,
        optimizer=simulate.SGD(0.1, momentum=0.9),
        staleness=simulate.Staleness(bound=0, soft_sync=3),
        seconds=lambda worker, step: 1.0 + worker,
        steps=10,
    )
    for found, expected in zip(result.weights, on_one_device(EVEN, steps=10, rate=0.1, momentum=0.9), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert result.histogram() == {0: 30}
    assert result.seconds == 30.0


def test_gradients_without_rows_count_as_zeros():
    result = simulate.asynchronous(
        UNEVEN,
        UNEVEN.start(),
        workers=3,
        optimizer=simulate.SGD(0.1),
        order=simulate.pushes([2] * 4),
    )
    x = UNEVEN.start()
    for step in range(2):
        x = [a - 0.1 * b for a, b in zip(x, UNEVEN(2, step, x)[0], strict=True)]
    assert result.version == 4
    for found, expected in zip(result.weights, x, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


def test_steps_with_a_constant_staleness_on_a_quadratic_follow_the_delayed_recurrence():
    # Two workers in turn: each push is computed at the weights before the other's last update.
    result = simulate.asynchronous(
        lambda worker, step, weights: ([weights[0]], 1),
        [np.array(1.0)],
        workers=2,
        optimizer=simulate.SGD(0.2),
        order=simulate.pushes([0, 1] * 10),
    )
    x = [1.0, 1.0 - 0.2]
    for _ in range(19):
        x.append(x[-1] - 0.2 * x[-2])
    assert result.histogram() == {0: 1, 1: 19}
    np.testing.assert_allclose(result.weights[0], x[-1], rtol=1e-13)


def test_pulls_and_pushes_may_be_scripted_apart():
    result = scripted([("pull", 0), ("push", 0), ("pull", 1), ("pull", 0), ("push", 1), ("push", 0)], workers=2)
    assert [arrival.staleness for arrival in result.log] == [0, 0, 1]
    assert [(arrival.began, arrival.second) for arrival in result.log] == [(0, 1), (2, 4), (3, 5)]


def timed(seconds, **options):
    rules = options.pop("rules", {})
    return simulate.asynchronous(
        ones, START, optimizer=SGD, staleness=simulate.Staleness(**rules), seconds=seconds, **options
    )


def test_the_time_line_of_a_straggler():
    result = timed(lambda worker, step: (1.0, 2.5)[worker], workers=2, total_steps=6)
    found = [(arrival.second, arrival.worker, arrival.staleness) for arrival in result.log]
    # The last steps are given out at seconds 3 and 2.5.
    assert found == [(1, 0, 0), (2, 0, 0), (2.5, 1, 2), (3, 0, 1), (4, 0, 0), (5, 1, 2)]


def test_of_pushes_at_the_same_time_that_of_the_lower_worker_is_first():
    result = timed(lambda worker, step: 1.0, workers=3, steps=2)
    assert [arrival.worker for arrival in result.log] == [0, 1, 2, 0, 1, 2]
    assert [arrival.staleness for arrival in result.log] == [0, 1, 2, 2, 2, 2]


def test_the_bound_makes_fast_workers_wait():
    seconds = [1.0, 4.0]
    result = timed(lambda worker, step: seconds[worker], workers=2, steps=3, rules={"bound": 1})
    # Worker 0 finishes two steps at 2. It may be only 1 ahead, so that it waits until worker 1 has finished one, at 4.
    assert [(arrival.worker, arrival.began, arrival.second) for arrival in result.log] == [
        (0, 0, 1),
        (0, 1, 2),
        (1, 0, 4),
        (0, 4, 5),
        (1, 4, 8),
        (1, 8, 12),
    ]


def test_a_scripted_pull_that_the_bound_forbids_is_refused():
    with pytest.raises(ValueError, match=r"received event 5: \('pull', 0\)"):
        scripted([("pull", 0), ("pull", 1), ("push", 0), ("pull", 0), ("push", 0), ("pull", 0)], workers=2, bound=1)


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 3)),
    st.one_of(st.none(), st.integers(0, 3)),
    st.integers(1, 4),
    st.integers(0, 6),
)
@settings(deadline=None)
def test_counts_add_up_and_no_rule_is_broken(durations, bound, drop_above, soft_sync, steps):
    workers = len(durations)
    result = timed(
        lambda worker, step: float(durations[worker][step % len(durations[worker])]),
        workers=workers,
        steps=steps,
        rules={"bound": bound, "drop_above": drop_above, "soft_sync": soft_sync},
    )
    assert len(result.log) == workers * steps == result.applied + result.dropped + result.pending
    assert result.applied == result.version * soft_sync
    assert result.pending < soft_sync
    assert sum(result.histogram().values()) == len(result.log)
    assert float(result.weights[0]) == 0.5 * result.version
    assert [arrival.second for arrival in result.log] == sorted(arrival.second for arrival in result.log)
    for arrival in result.log:
        assert (
            arrival.second - arrival.began == durations[arrival.worker][arrival.step % len(durations[arrival.worker])]
        )
        assert arrival.dropped == (drop_above is not None and arrival.staleness > drop_above)
        if bound is not None:
            done = [
                sum(other.worker == w and other.second <= arrival.began for other in result.log) for w in range(workers)
            ]
            assert arrival.step - min(done) <= bound


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate.Staleness(scale="tau"), "scale to be '1/tau', None or a function, received 'tau'"),
        (lambda: simulate.Staleness(bound=-1), "bound of 0 or more, or None, received -1"),
        (lambda: simulate.Staleness(drop_above=-1), "drop_above of 0 or more, or None, received -1"),
        (lambda: simulate.Staleness(soft_sync=0), "soft_sync of at least 1, received 0"),
        (lambda: scripted([("push", 0)]), "a pull of worker 0 before each of its pushes, received none"),
        (lambda: scripted([("pull", 3)]), "a worker from 0 to 2, received 3"),
        (lambda: scripted([], workers=0), "at least 1 worker, received 0"),
        (lambda: timed(None, workers=1), "an order, or seconds, received neither"),
        (lambda: timed(lambda worker, step: 1.0, workers=1), "steps=None, total_steps=None"),
        (lambda: timed(lambda worker, step: 1.0, workers=1, order=[], steps=1), "an order, or seconds and steps"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
