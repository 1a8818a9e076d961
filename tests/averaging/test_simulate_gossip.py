"""Decentralised SGD of the simulator: closed forms, one device, and loops written for the test."""

from __future__ import annotations

import numpy as np
import pytest

from tests.averaging.problems import EVEN, UNEVEN, on_one_device
from tfdist.averaging import complete, exponential, one_peer_exponential, ring, simulate
from tfdist.averaging.mixing import Mixing

MOMENTUM = simulate.SGD(0.1, momentum=0.9)
ALONE = Mixing(3, (((0, 1.0),),))


def assert_near(found, expected, tolerance=1e-13):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.broadcast_to(other, np.shape(one)), rtol=0, atol=tolerance)


def no_gradient(worker, step, weights):
    return [np.zeros_like(weights[0])], 1


def test_the_mean_of_workers_with_the_complete_matrix_is_one_device_on_all_rows():
    # The gradients are linear in the weights, and each worker has the same matrix, so that the mean of the updates is
    # the update of the mean.
    same = simulate.AllWorkers(
        lambda step, weights: (
            [weights[0] - np.arange(3.0)[:, None]],
            np.ones(3),
        )
    )
    result = simulate.d_psgd(same, [np.full(1, 5.0)], steps=20, optimizer=MOMENTUM, mixing=complete(3))
    x, m = 5.0, 0.0
    for _ in range(20):
        m = 0.9 * m - 0.1 * (x - 1.0)
        x += m
    assert_near(result.seen, [[x]])


def test_one_step_with_the_complete_matrix_is_one_device_on_even_rows():
    result = simulate.d_psgd(EVEN, EVEN.start(), steps=1, optimizer=MOMENTUM, mixing=complete(3))
    assert_near(result.seen, on_one_device(EVEN, steps=1, rate=0.1, momentum=0.9))


def test_the_mean_with_the_complete_matrix_and_gradients_at_the_mean_is_one_device():
    # x_i = mean - rate * g_i(x_i): with a second step, the gradients are at the own weights of each worker.
    result = simulate.d_psgd(EVEN, EVEN.start(), steps=2, optimizer=simulate.SGD(0.1), mixing=complete(3))
    first = [
        [x - 0.1 * g for x, g in zip(EVEN.start(), EVEN(worker, 0, EVEN.start())[0], strict=True)]
        for worker in range(3)
    ]
    mean = [sum(one[place] for one in first) / 3 for place in range(2)]
    for worker in range(3):
        g, _ = EVEN(worker, 1, first[worker])
        assert_near([array[worker] for array in result.weights], [a - 0.1 * b for a, b in zip(mean, g, strict=True)])


@pytest.mark.parametrize(
    "mixing", [ring(5), exponential(5), one_peer_exponential(5)], ids=["ring", "static", "one peer"]
)
def test_steps_without_gradients_multiply_with_the_matrices(mixing):
    push = simulate.AllWorkers(
        lambda step, weights: ([np.arange(5.0)[:, None] if step == 0 else np.zeros((5, 1))], np.ones(5))
    )
    result = simulate.d_psgd(push, [np.zeros(1)], steps=6, optimizer=simulate.SGD(1.0), mixing=mixing)
    expected = -np.arange(5.0)
    for step in range(1, 6):
        expected = mixing.matrix(step) @ expected
    assert_near(result.weights, [expected[:, None]])
    assert_near(result.seen, [-2.0])


def test_d_psgd_on_a_quadratic_is_a_linear_recurrence():
    result = simulate.d_psgd(
        lambda worker, step, weights: ([2.0 * (weights[0] - worker)], 1),
        [np.array(3.0)],
        steps=25,
        optimizer=simulate.SGD(0.1),
        mixing=ring(6),
    )
    matrix = ring(6).matrix() - 0.2 * np.eye(6)
    fixed = np.linalg.solve(np.eye(6) - matrix, 0.2 * np.arange(6.0))
    expected = fixed + np.linalg.matrix_power(matrix, 25) @ (3.0 - fixed)
    assert_near(result.weights, [expected])


def test_d_psgd_with_uneven_rows_and_momentum_is_that_of_loops_over_workers():
    result = simulate.d_psgd(UNEVEN, UNEVEN.start(), steps=9, optimizer=MOMENTUM, mixing=one_peer_exponential(3))
    x = [UNEVEN.start() for _ in range(3)]
    m = [[np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    for step in range(9):
        peer = 2 ** (step % 2)
        old = [list(one) for one in x]
        for worker in range(3):
            g, count = UNEVEN(worker, step, old[worker])
            for place in range(2):
                m[worker][place] = 0.9 * m[worker][place] - (0.1 * g[place] if count else 0)
                mixed = (old[worker][place] + old[(worker + peer) % 3][place]) / 2
                x[worker][place] = mixed + m[worker][place]
    assert_near(result.weights, [np.stack([one[place] for one in x]) for place in range(2)])
    assert_near(result.slots["momentum"], [np.stack([one[place] for one in m]) for place in range(2)])


def test_choco_sgd_without_compression_and_gamma_1_mixes_after_the_update():
    result = simulate.choco_sgd(
        EVEN,
        EVEN.start(),
        steps=7,
        optimizer=MOMENTUM,
        mixing=ring(3),
        compress=lambda array: array,
        gamma=1.0,
    )
    x = [UNEVEN.start() for _ in range(3)]
    m = [[np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    for step in range(7):
        for worker in range(3):
            g, _ = EVEN(worker, step, x[worker])
            m[worker] = [0.9 * a - 0.1 * b for a, b in zip(m[worker], g, strict=True)]
            x[worker] = [a + b for a, b in zip(x[worker], m[worker], strict=True)]
        x = [[sum(one[place] for one in x) / 3 for place in range(2)]] * 3
    assert_near(result.weights, x[0])


@pytest.mark.parametrize("known_start", [True, False])
def test_choco_sgd_with_top_k_is_that_of_loops_over_workers(known_start):
    result = simulate.choco_sgd(
        UNEVEN,
        UNEVEN.start(),
        steps=11,
        optimizer=MOMENTUM,
        mixing=exponential(3),
        compress=simulate.top_k(0.34),
        gamma=0.4,
        known_start=known_start,
    )
    x = [UNEVEN.start() for _ in range(3)]
    m = [[np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    known = [UNEVEN.start() if known_start else [np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    for step in range(11):
        for worker in range(3):
            g, count = UNEVEN(worker, step, list(x[worker]))
            for place in range(2):
                m[worker][place] = 0.9 * m[worker][place] - (0.1 * g[place] if count else 0)
                x[worker][place] = x[worker][place] + m[worker][place]
                difference = x[worker][place] - known[worker][place]
                least = np.sort(np.abs(difference).ravel())[-2 if place == 0 else -1]
                known[worker][place] = known[worker][place] + np.where(np.abs(difference) >= least, difference, 0)
        for worker in range(3):
            for place in range(2):
                apart = sum((known[other][place] - known[worker][place]) / 3 for other in range(3))
                x[worker][place] = x[worker][place] + 0.4 * apart
    assert_near(result.weights, [np.stack([one[place] for one in x]) for place in range(2)])
    assert_near(result.estimates, [np.stack([one[place] for one in known]) for place in range(2)])


@pytest.mark.parametrize("mixing", [ring(4), exponential(4)], ids=["ring", "static"])
def test_choco_sgd_keeps_the_mean_and_comes_to_agree(mixing):
    push = simulate.AllWorkers(
        lambda step, weights: (
            [-np.arange(24.0).reshape(4, 6) if step == 0 else np.zeros((4, 6))],
            np.ones(4),
        )
    )
    result = simulate.choco_sgd(
        push,
        [np.zeros(6)],
        steps=400,
        optimizer=simulate.SGD(1.0),
        mixing=mixing,
        compress=simulate.top_k(0.34),
        gamma=0.2,
    )
    assert_near(result.seen, [np.arange(24.0).reshape(4, 6).mean(axis=0)], 1e-12)
    assert result.spread < 1e-9


def test_ad_psgd_uses_the_weights_that_the_worker_read_and_the_mean_at_its_end():
    read = []

    def gradient(worker, step, weights):
        read.append((worker, step, float(weights[0])))
        return [weights[0] - 10.0 * worker], 1

    result = simulate.ad_psgd(
        gradient,
        [np.array(8.0)],
        workers=3,
        order=[(0, 1), (1, 2), (0, 2), (1, 0)],
        optimizer=simulate.SGD(0.5),
    )
    # (0, 1): mean 8; worker 0 has 8 - 4 = 4. (1, 2): mean 8; worker 1 has read 8, and has 8 + 1 = 9.
    # (0, 2): mean of 4 and 8 is 6; worker 0 has read 4, and has 6 - 2 = 4; worker 2 has 6.
    # (1, 0): mean of 9 and 4 is 6.5; worker 1 has read 9, and has 6.5 + 0.5 = 7; worker 0 has 6.5.
    assert read == [(0, 0, 8.0), (1, 0, 8.0), (0, 1, 4.0), (1, 1, 9.0)]
    assert_near(result.weights, [np.array([6.5, 7.0, 6.0])], 0)


def test_a_peer_that_changed_the_weights_does_not_change_the_gradients_of_a_worker():
    result = simulate.ad_psgd(
        lambda worker, step, weights: ([weights[0] * (1.0 if worker else -1.0)], 1),
        [np.array(4.0)],
        workers=2,
        order=[(0, 1), (1, 0)],
        optimizer=simulate.SGD(0.5),
    )
    # Worker 0 has 4 + 2 = 6. The mean of 6 and 4 is 5, and worker 1 has read 4: 5 - 2 = 3.
    assert_near(result.weights, [np.array([5.0, 3.0])], 0)


def test_ad_psgd_keeps_the_slots_of_each_worker_and_ignores_gradients_without_rows():
    result = simulate.ad_psgd(
        lambda worker, step, weights: ([np.array(-1.0 if step == 0 else np.nan)], 1 if step == 0 else 0),
        [np.array(0.0)],
        workers=2,
        order=[(0, 1), (0, 1), (1, 0)],
        optimizer=simulate.SGD(1.0, momentum=0.5),
    )
    # Worker 0: 1; then the mean 0.5, plus the momentum 0.5. Worker 1 has 0.5, then the mean 0.75, plus 1.
    assert_near(result.weights, [np.array([0.75, 1.75])], 0)
    assert_near(result.slots["momentum"], [np.array([0.5, 1.0])], 0)


def test_workers_that_do_not_mix_train_alone():
    result = simulate.d_psgd(EVEN, EVEN.start(), steps=5, optimizer=MOMENTUM, mixing=ALONE)
    for worker in range(3):
        alone = simulate.local_sgd(
            lambda _, step, weights, worker=worker: EVEN(worker, step, weights),
            EVEN.start(),
            workers=1,
            steps=5,
            optimizer=MOMENTUM,
            rounds=simulate.Rounds(every=9),
        )
        assert_near([array[worker] for array in result.weights], [array[0] for array in alone.weights])


def test_no_steps_change_nothing():
    result = simulate.d_psgd(EVEN, EVEN.start(), steps=0, optimizer=MOMENTUM, mixing=ring(3))
    assert_near(result.weights, EVEN.start(), 0)
    assert result.spread == 0


def test_top_k_keeps_one_entry_at_least_and_the_earlier_of_equal_ones():
    assert simulate.top_k(0.01)(np.array([1.0, -1.0, 0.5])).tolist() == [1.0, 0.0, 0.0]
    assert simulate.top_k(1.0)(np.array([[1.0, -1.0], [0.5, 0.0]])).tolist() == [[1.0, -1.0], [0.5, 0.0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate.top_k(0), "part above 0, and at most 1, received 0"),
        (
            lambda: simulate.choco_sgd(
                no_gradient,
                [np.zeros(1)],
                steps=1,
                optimizer=MOMENTUM,
                mixing=ring(3),
                compress=simulate.top_k(1),
                gamma=2,
            ),
            "gamma above 0, and at most 1, received 2",
        ),
        (
            lambda: simulate.ad_psgd(no_gradient, [np.zeros(1)], workers=2, order=[(0, 0)], optimizer=MOMENTUM),
            r"two different workers from 0 to 1, received \(0, 0\)",
        ),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
