"""Local SGD of the simulator: closed forms, one device, and loops written for the test."""

from __future__ import annotations

import numpy as np
import pytest

from tests.averaging.problems import EVEN, UNEVEN, Rows, on_one_device
from tfdist.averaging import simulate

MOMENTUM = simulate.SGD(0.1, momentum=0.9)


def trained(rows, *, steps=20, optimizer=MOMENTUM, workers=3, **options):
    return simulate.local_sgd(
        rows, rows.start(), workers=workers, steps=steps, optimizer=optimizer, rounds=simulate.Rounds(**options)
    )


def assert_near(found, expected, tolerance=1e-13):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.broadcast_to(other, np.shape(one)), rtol=0, atol=tolerance)


@pytest.mark.parametrize("rows", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_meeting_after_each_step_with_slots_averaged_is_one_device_on_all_rows(rows, nesterov):
    sgd = simulate.SGD(0.1, momentum=0.9, nesterov=nesterov)
    expected = on_one_device(rows, steps=20, rate=0.1, momentum=0.9, nesterov=nesterov)
    assert_near(trained(rows, optimizer=sgd, every=1).weights, expected)


def test_a_meeting_after_each_step_without_slots_averaged_is_not_one_device_on_uneven_rows():
    expected = on_one_device(UNEVEN, steps=20, rate=0.1, momentum=0.9)
    found = trained(UNEVEN, every=1, average_slots=False).seen[-1]
    assert max(np.abs(a - b).max() for a, b in zip(found, expected, strict=True)) > 1e-4


def test_plain_sgd_with_a_meeting_after_each_step_is_one_device_on_all_rows():
    expected = on_one_device(UNEVEN, steps=20, rate=0.1)
    assert_near(trained(UNEVEN, optimizer=simulate.SGD(0.1), every=1, average_slots=False).weights, expected)


@pytest.mark.parametrize("rows", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_steps_before_start_step_are_one_device_on_all_rows(rows):
    result = trained(rows, every=16, start_step=20)
    assert_near(result.weights, on_one_device(rows, steps=20, rate=0.1, momentum=0.9))
    assert_near(result.seen[9], on_one_device(rows, steps=10, rate=0.1, momentum=0.9))
    assert result.meetings == ()


def test_one_worker_is_plain_sgd_whatever_the_rounds():
    rows = Rows(((4,), (3,)))
    expected = on_one_device(rows, steps=20, rate=0.1, momentum=0.9)
    for every in (1, 3, 16):
        assert_near(trained(rows, workers=1, every=every).weights, expected)


@pytest.mark.parametrize("every", [2, 5])
@pytest.mark.parametrize("start_step", [0, 3])
@pytest.mark.parametrize("average_slots", [True, False])
@pytest.mark.parametrize("name", ["average", "block momentum", "nesterov"])
def test_rounds_are_those_of_loops_over_workers(every, start_step, average_slots, name):
    outer = {
        "average": simulate.Average(),
        "block momentum": simulate.BlockMomentum(rate=0.8, momentum=0.5),
        "nesterov": simulate.Nesterov(),
    }[name]
    result = trained(UNEVEN, steps=17, every=every, start_step=start_step, average_slots=average_slots, outer=outer)

    x = [UNEVEN.start() for _ in range(3)]
    m = [[np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    anchor, u = UNEVEN.start(), [np.zeros((3, 2)), np.zeros(2)]
    rows, since, meetings = np.zeros(3), 0, []
    for step in range(17):
        if step < start_step:
            gradients = [UNEVEN.joined(step, x[0])] * 3
        else:
            found = [UNEVEN(worker, step, x[worker]) for worker in range(3)]
            gradients = [g if count else [np.zeros((3, 2)), np.zeros(2)] for g, count in found]
            rows += [count for _, count in found]
            since += 1
        for worker in range(3):
            for place in range(2):
                m[worker][place] = 0.9 * m[worker][place] - 0.1 * gradients[worker][place]
                x[worker][place] = x[worker][place] + m[worker][place]
        if step < start_step:
            anchor = list(x[0])
        seen = [sum(rows[w] * x[w][p] for w in range(3)) / rows.sum() if rows.sum() else x[0][p] for p in range(2)]
        if since == every:
            part, meetings = rows / rows.sum(), [*meetings, step]
            for place in range(2):
                d = sum(part[w] * (anchor[place] - x[w][place]) for w in range(3))
                if name == "average":
                    anchor[place] = anchor[place] - d
                else:
                    u[place] = outer.momentum * u[place] + d
                    moved = u[place] if name == "block momentum" else d + outer.momentum * u[place]
                    anchor[place] = anchor[place] - outer.rate * moved
                mean = sum(part[w] * m[w][place] for w in range(3))
                for worker in range(3):
                    x[worker][place] = anchor[place]
                    m[worker][place] = mean if average_slots else m[worker][place]
            rows, since, seen = np.zeros(3), 0, list(anchor)
        assert_near(result.seen[step], seen)
    assert result.meetings == tuple(meetings)
    assert_near(result.weights, [np.stack([x[w][p] for w in range(3)]) for p in range(2)])
    assert_near(result.slots["momentum"], [np.stack([m[w][p] for w in range(3)]) for p in range(2)])
    assert_near(result.anchor, anchor)
    assert_near(result.momentum, u)


def quadratic(worker, step, weights):
    """Gradients of (x - worker)**2 / 2 from worker + 1 rows."""
    return [weights[0] - worker], worker + 1


def test_local_steps_on_a_quadratic_have_the_closed_form():
    # After k steps x_i = i + 0.9**k (x - i), so that a round multiplies the distance from the weighted mean by 0.9**4.
    result = simulate.local_sgd(
        quadratic,
        [np.array(8.0)],
        workers=3,
        steps=12,
        optimizer=simulate.SGD(0.1),
        rounds=simulate.Rounds(every=4),
    )
    mean = (1 * 0 + 2 * 1 + 3 * 2) / 6
    np.testing.assert_allclose(result.weights[0], mean + 0.9**12 * (8 - mean), rtol=1e-14)


@pytest.mark.parametrize("rule", ["block momentum", "nesterov"])
def test_outer_momentum_on_a_quadratic_is_a_linear_recurrence(rule):
    outer = {
        "block momentum": simulate.BlockMomentum(rate=0.6, momentum=0.5),
        "nesterov": simulate.Nesterov(rate=0.6, momentum=0.5),
    }[rule]
    result = simulate.local_sgd(
        quadratic,
        [np.array(8.0)],
        workers=3,
        steps=20,
        optimizer=simulate.SGD(0.1),
        rounds=simulate.Rounds(every=4, outer=outer),
    )
    # (x - mean, u) is multiplied by a matrix in each round.
    a = 1 - 0.9**4
    ahead = (a, 0.5) if rule == "block momentum" else (a + 0.5 * a, 0.25)
    matrix = np.array([[1 - 0.6 * ahead[0], -0.6 * ahead[1]], [a, 0.5]])
    mean = 8 / 6
    expected = np.linalg.matrix_power(matrix, 5) @ [8 - mean, 0]
    np.testing.assert_allclose(result.anchor[0] - mean, expected[0], rtol=1e-12)
    np.testing.assert_allclose(result.momentum[0], expected[1], rtol=1e-12)


def test_elastic_average_is_that_of_loops_over_workers():
    result = trained(
        UNEVEN, steps=14, every=3, start_step=2, average_slots=False, outer=simulate.ElasticAverage(rate=0.2)
    )
    x = [UNEVEN.start() for _ in range(3)]
    m = [[np.zeros((3, 2)), np.zeros(2)] for _ in range(3)]
    centre = UNEVEN.start()
    for step in range(14):
        joined = UNEVEN.joined(step, x[0])
        for worker in range(3):
            g, count = (joined, 1) if step < 2 else UNEVEN(worker, step, x[worker])
            for place in range(2):
                m[worker][place] = 0.9 * m[worker][place] - (0.1 * g[place] if count else 0)
                x[worker][place] = x[worker][place] + m[worker][place]
        if step < 2:
            centre = list(x[0])
        elif (step - 1) % 3 == 0:
            for place in range(2):
                apart = [x[w][place] - centre[place] for w in range(3)]
                for worker in range(3):
                    x[worker][place] = x[worker][place] - 0.2 * apart[worker]
                centre[place] = centre[place] + 0.2 * sum(apart)
        assert_near(result.seen[step], centre)
    assert result.meetings == (4, 7, 10, 13)
    assert_near(result.weights, [np.stack([x[w][p] for w in range(3)]) for p in range(2)])


def test_elastic_average_uses_the_weights_before_the_meeting_for_both():
    moves = simulate.AllWorkers(lambda step, weights: ([np.array([-1.0, -2.0, -6.0])], np.ones(3)))
    rounds = simulate.Rounds(every=1, average_slots=False, outer=simulate.ElasticAverage(rate=0.25))
    result = simulate.local_sgd(moves, [np.array(0.0)], workers=3, steps=1, optimizer=simulate.SGD(1.0), rounds=rounds)
    assert_near(result.weights, [np.array([0.75, 1.5, 4.5])])
    assert_near(result.anchor, [2.25])


def test_a_worker_without_rows_coasts_and_has_no_weight():
    rows = Rows(((4, 0),))
    result = trained(rows, workers=2, steps=4, every=4)
    assert_near(result.weights, on_one_device(Rows(((4,),)), steps=4, rate=0.1, momentum=0.9))
    coasting = simulate.local_sgd(
        lambda worker, step, weights: ([np.array(-1.0)], 1 if step == 0 else 0),
        [np.array(0.0)],
        workers=2,
        steps=3,
        optimizer=simulate.SGD(1.0, momentum=0.5),
        rounds=simulate.Rounds(every=9),
    )
    assert_near(coasting.weights, [np.array([1.75, 1.75])])


def test_a_round_without_any_rows_has_equal_weights():
    result = simulate.local_sgd(
        lambda worker, step, weights: ([np.array(-float(worker))], 1 if step == 0 else 0),
        [np.array(0.0)],
        workers=3,
        steps=2,
        optimizer=simulate.SGD(1.0, momentum=0.5),
        rounds=simulate.Rounds(every=1, average_slots=False),
    )
    # After the first meeting all are 1, then momentum moves them by 0, 0.5 and 1.
    assert_near(result.weights, [np.full(3, 1.5)])


def test_every_may_depend_on_the_step_that_has_ended():
    asked = []

    def every(step):
        asked.append(step)
        return 2 if step < 6 else 4

    result = trained(EVEN, steps=15, every=every, start_step=1)
    assert result.meetings == (2, 4, 8, 12)
    assert asked[:14] == list(range(1, 15))


def test_adam_is_that_of_the_formula_of_keras():
    # Written from the documentation of Keras 3: alpha = rate sqrt(1 - b2**t) / (1 - b1**t).
    rows = Rows(((4,),))
    x, m, v = rows.start(), [0.0, 0.0], [0.0, 0.0]
    for step in range(10):
        for place, g in enumerate(rows.joined(step, list(x))):
            m[place] = 0.8 * m[place] + 0.2 * g
            v[place] = 0.95 * v[place] + 0.05 * g**2
            alpha = 0.01 * np.sqrt(1 - 0.95 ** (step + 1)) / (1 - 0.8 ** (step + 1))
            x[place] = x[place] - alpha * m[place] / (np.sqrt(v[place]) + 1e-7)
    adam = simulate.Adam(0.01, beta_1=0.8, beta_2=0.95)
    assert_near(trained(rows, workers=1, steps=10, optimizer=adam, every=3).weights, x)


def test_a_rate_may_depend_on_the_step():
    rows = Rows(((4,),))
    x = rows.start()
    for step in range(6):
        x = [a - 0.1 / (step + 1) * g for a, g in zip(x, rows.joined(step, x), strict=True)]
    sgd = simulate.SGD(lambda step: 0.1 / (step + 1))
    assert_near(trained(rows, workers=1, steps=6, optimizer=sgd, every=2).weights, x)


def test_gradients_of_all_workers_at_once_are_those_of_one_after_the_other():
    def at_once(step, weights):
        found = [UNEVEN(worker, step, [array[worker] for array in weights]) for worker in range(3)]
        return [np.stack([g[place] for g, _ in found]) for place in range(2)], np.array([count for _, count in found])

    one = trained(UNEVEN, steps=10, every=4)
    other = simulate.local_sgd(
        simulate.AllWorkers(at_once),
        UNEVEN.start(),
        workers=3,
        steps=10,
        optimizer=MOMENTUM,
        rounds=simulate.Rounds(every=4),
    )
    assert_near(one.weights, other.weights, 0)


def test_the_weights_at_the_start_are_not_changed():
    start = UNEVEN.start()
    simulate.local_sgd(UNEVEN, start, workers=3, steps=5, optimizer=MOMENTUM, rounds=simulate.Rounds(every=2))
    assert_near(start, UNEVEN.start(), 0)
    untrained = trained(UNEVEN, steps=0)
    assert (untrained.seen, untrained.meetings) == ((), ())
    assert_near(untrained.weights, UNEVEN.start(), 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulate.Rounds(every=0), "every to be at least 1, received 0"),
        (lambda: simulate.Rounds(every=lambda step: 0).meetings(1), "every to be at least 1, received 0"),
        (lambda: simulate.Rounds(start_step=-1), "start_step of 0 or more, received -1"),
        (lambda: simulate.Rounds(outer=simulate.ElasticAverage(rate=0.1)), "average_slots=False with ElasticAverage"),
        (lambda: simulate.ElasticAverage(rate=0), "rate of ElasticAverage above 0"),
        (lambda: simulate.Nesterov(rate=0), "outer rate above 0, received 0"),
        (lambda: simulate.BlockMomentum(momentum=1), "outer momentum of 0 or more and below 1, received 1"),
        (lambda: simulate.SGD(0.1, momentum=2), "momentum from 0 to 1, received 2"),
        (lambda: simulate.SGD(0.1, nesterov=True), "momentum above 0 with nesterov=True"),
        (lambda: trained(EVEN, workers=0), "at least 1 worker, received 0"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("found", "message"),
    [(([np.zeros(2)], 1), r"gradient of the shape \(\), received \(2,\)"), (([np.zeros(())], -1), "of 0 or more")],
)
def test_wrong_gradients_are_refused(found, message):
    with pytest.raises(ValueError, match=message):
        simulate.local_sgd(
            lambda worker, step, weights: found,
            [np.array(0.0)],
            workers=2,
            steps=1,
            optimizer=simulate.SGD(1.0),
            rounds=simulate.Rounds(),
        )
