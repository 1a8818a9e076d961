"""Predicted times: the problems have the gradients of their losses, and the times are those of the steps."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest

from tests.processes import ROOT
from tfdist.averaging import complete, ring, simulate
from tfdist.averaging.simulate.predict import steps_to_loss

LINK = simulate.Link(latency_seconds=1e-4, bytes_per_second=1e8)
QUADRATIC = simulate.NoisyQuadratic(workers=4, noise=100.0)
LOGISTIC = simulate.LogisticRegression(workers=4, rows=512, batch=128)
PROBLEMS = pytest.mark.parametrize("problem", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])


def predicted(method, *, problem=LOGISTIC, rate=1.0, machines=None, **options):
    machines = machines or simulate.Machines.alike(problem.workers, seconds=0.1)
    return simulate.predict(
        problem, method, machines=machines, link=LINK, size=1e6, optimizer=simulate.SGD(rate), **options
    )


def numeric_slope(loss, at):
    steps = 1e-5 * np.eye(len(at))
    return np.array([(loss([at + step]) - loss([at - step])) / 2e-5 for step in steps])


def test_the_mean_gradient_of_the_quadratic_is_the_slope_of_its_loss():
    quiet = simulate.NoisyQuadratic(workers=2, noise=0.0)
    at = np.random.default_rng(0).normal(size=32)
    np.testing.assert_allclose(quiet.gradient(1, 0, [at])[0][0], numeric_slope(quiet.loss, at), atol=1e-8)


def test_the_noise_of_the_quadratic_has_the_variance_that_it_says():
    problem = simulate.NoisyQuadratic(workers=1000, batch=25, noise=400.0)
    gradients, _ = problem.gradients(5, [np.zeros((1000, 32))])
    np.testing.assert_allclose(gradients[0].var(axis=0), 16 * problem.curvature, rtol=0.25)
    assert not np.array_equal(gradients[0], problem.gradients(6, [np.zeros((1000, 32))])[0][0])


def test_the_mean_gradient_of_one_pass_over_the_rows_is_the_slope_of_the_logistic_loss():
    # 4 workers with 128 rows each read all 512 rows in a step.
    at = np.random.default_rng(0).normal(size=32)
    mean = sum(LOGISTIC.gradient(worker, 3, [at])[0][0] for worker in range(4)) / 4
    np.testing.assert_allclose(mean, numeric_slope(LOGISTIC.loss, at), atol=1e-8)


def test_each_turn_through_the_rows_has_every_row_once_in_another_order():
    problem = simulate.LogisticRegression(workers=3, rows=40, batch=4)
    every, _ = problem.data
    read = np.concatenate([problem._read(np.arange(3), step)[0].reshape(-1, 32) for step in range(20)])
    turns = [[int(np.flatnonzero((every == row).all(axis=1))[0]) for row in read[at : at + 40]] for at in (0, 40, 200)]
    assert [sorted(turn) for turn in turns] == [list(range(40))] * 3
    assert turns[0] != turns[1] != turns[2]


def test_the_smallest_logistic_loss_is_that_of_long_gradient_descent():
    at = LOGISTIC.start()[0]
    for step in range(30_000):
        at = at - 4.0 * sum(LOGISTIC.gradients(step, [np.repeat(at[None], 4, axis=0)])[0][0]) / 4
    assert LOGISTIC.best == pytest.approx(LOGISTIC.loss([at]), abs=1e-9)
    assert LOGISTIC.best <= LOGISTIC.loss([at]) + 1e-12


@PROBLEMS
def test_gradients_of_all_workers_are_those_of_each(problem):
    at = np.random.default_rng(1).normal(size=(4, 32))
    together, rows = problem.gradients(7, [at])
    for worker in range(4):
        alone, count = problem.gradient(worker, 7, [at[worker]])
        np.testing.assert_allclose(together[0][worker], alone[0], rtol=0, atol=1e-13)
        assert rows[worker] == count


@PROBLEMS
def test_steps_until_a_loss_are_those_of_gradient_descent(problem):
    goal = problem.best + 0.1 * (problem.loss(problem.start()) - problem.best)
    at = problem.start()[0]
    for count in range(1, 500):
        mean = np.mean([problem.gradient(worker, count - 1, [at])[0][0] for worker in range(4)], axis=0)
        at = at - 0.25 * mean
        if problem.loss([at]) <= goal:
            break
    found = steps_to_loss(problem, simulate.Synchronous(), optimizer=simulate.SGD(0.25), part=0.1, max_steps=500)
    assert 1 < found == count < 499


def test_synchronous_time_is_steps_times_slowest_worker_and_sum():
    machines = simulate.Machines.alike(4, seconds=0.1, slow=1, factor=4)
    found = predicted(simulate.Synchronous(), machines=machines)
    assert found.seconds == pytest.approx(found.steps * (0.4 + 6 * 1e-4 + 1.5 * 0.01))
    assert found.sent_bytes == pytest.approx(found.steps * 1.5e6)


def test_local_steps_end_at_a_meeting_and_send_less():
    found = predicted(simulate.Rounds(every=8))
    assert found.steps % 8 == 0
    assert found.seconds == pytest.approx(found.steps * 0.1 + found.steps / 8 * (6 * 1e-4 + 1.5 * 0.01))
    assert found.sent_bytes == pytest.approx(found.steps / 8 * 1.5e6)


def test_a_meeting_that_averages_slots_sends_them_too():
    options = {"machines": simulate.Machines.alike(4, seconds=0.1), "link": LINK, "size": 1e6}
    sgd = simulate.SGD(0.2, momentum=0.8)
    both, one = (
        simulate.predict(LOGISTIC, simulate.Rounds(every=4, average_slots=slots), optimizer=sgd, **options)
        for slots in (True, False)
    )
    assert both.sent_bytes / both.steps == pytest.approx(2 * one.sent_bytes / one.steps)


def test_post_local_steps_are_synchronous_first():
    found = predicted(simulate.Rounds(every=1000, start_step=2000))
    assert found == predicted(simulate.Synchronous())


def test_gossip_with_the_complete_matrix_takes_about_the_steps_of_synchronous_sgd():
    alike = predicted(simulate.Gossip(mixing=complete(4)))
    synchronous = predicted(simulate.Synchronous())
    assert abs(alike.steps - synchronous.steps) <= 0.05 * synchronous.steps
    assert predicted(simulate.Gossip(mixing=ring(4))).sent_bytes / alike.steps == pytest.approx(2e6, rel=0.2)


def test_a_straggler_slows_synchronous_steps_and_not_a_parameter_server():
    slow = simulate.Machines.alike(4, seconds=0.1, slow=1, factor=4)
    server = simulate.ParameterServer(staleness=simulate.Staleness(scale="1/tau"), servers=4)
    assert predicted(simulate.Synchronous(), machines=slow).seconds > 3 * predicted(simulate.Synchronous()).seconds
    assert predicted(server, machines=slow).seconds < 2 * predicted(server).seconds


def test_one_server_is_busy_with_one_push_at_a_time():
    # A push keeps the link of the only server busy for 0.1 s, so that a step of 4 workers takes 0.4 s.
    server = simulate.ParameterServer(staleness=simulate.Staleness())
    found = simulate.predict(
        LOGISTIC,
        server,
        machines=simulate.Machines.alike(4, seconds=0.05),
        link=simulate.Link(latency_seconds=0.0, bytes_per_second=1e7),
        size=1e6,
        optimizer=simulate.SGD(0.1),
        part=0.2,
    )
    assert found.seconds == pytest.approx(0.4 * found.steps + 0.15, abs=1e-6)


def test_a_loss_that_is_not_reached_has_no_time():
    assert predicted(simulate.Synchronous(), max_steps=3).seconds is None
    assert predicted(simulate.Synchronous(), max_seconds=0.5).seconds is None
    server = simulate.ParameterServer(staleness=simulate.Staleness())
    assert predicted(server, max_seconds=0.5).seconds is None
    assert predicted(server, max_steps=1).seconds is None
    assert predicted(simulate.Synchronous(), problem=QUADRATIC, rate=5.0).seconds is None
    assert predicted(server, problem=QUADRATIC, rate=5.0).seconds is None


def test_the_fastest_of_several_rates_is_chosen():
    options = {"machines": simulate.Machines.alike(4, seconds=0.1), "link": LINK, "size": 1e6}
    rates = [0.5, 4.0, 1.0]
    found, optimizer = simulate.fastest(
        LOGISTIC, simulate.Synchronous(), optimizers=[simulate.SGD(rate) for rate in rates], **options
    )
    every = {rate: predicted(simulate.Synchronous(), rate=rate).seconds or math.inf for rate in rates}
    assert every[optimizer.learning_rate] == min(every.values()) == found.seconds


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: predicted(simulate.Synchronous(), machines=simulate.Machines.alike(3, seconds=1.0)), "for 3 workers"),
        (lambda: simulate.ParameterServer(staleness=simulate.Staleness(), servers=0), "at least 1 parameter server"),
        (
            lambda: simulate.fastest(
                LOGISTIC,
                simulate.Synchronous(),
                machines=simulate.Machines.alike(4, seconds=1.0),
                link=LINK,
                size=1.0,
                optimizers=[],
            ),
            "at least one optimizer to try",
        ),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_each_public_name_has_an_example():
    assert [name for name in simulate.__all__ if ">>> " not in (inspect.getdoc(getattr(simulate, name)) or "")] == []


def test_the_command_prints_the_same_table_twice_without_tensorflow():
    command = "--workers 4 --mbit 100 1000 --slow-factor 1 --rows 512 --rates 1 2 --every 4"
    program = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('tfdist.averaging.simulate', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    tables = [
        subprocess.run(
            [sys.executable, "-c", program, *command.split()],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for _ in range(2)
    ]
    assert tables[0] == tables[1]
    lines = tables[0].splitlines()
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {10}
    assert lines[2].startswith("| 4 | 100 | 1 x | ")
