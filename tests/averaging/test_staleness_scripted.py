"""Versions, counts and weights of scripted steps are those of an independent simulation."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from tests.averaging.event_simulation import FEATURES, Adam, events_of, gradient_of, simulate
from tests.averaging.scenarios import SCENARIOS, WORKERS
from tests.processes import run
from tfdist.averaging import simulate as simulator


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("scripted")
    command = [sys.executable, "-m", "tests.averaging.programs.scripted_steps", str(folder / "results.json")]
    assert run(command, cwd=folder, deadline_seconds=240).code == 0
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("name", SCENARIOS)
def test_scripted_steps_have_the_versions_counts_and_weights_of_the_simulation(trained: Any, name: str) -> None:
    scenario = SCENARIOS[name]
    events = events_of(scenario, workers=WORKERS)
    expected = simulate(events, scenario.simulated_optimizer(), **scenario.simulated)
    actual = trained[name]
    assert actual["counts"] == expected["counts"]
    assert actual["histogram"] == expected["histogram"]
    assert sum(actual["histogram"]) == scenario.steps
    assert actual["iterations"] == expected["counts"][-1][0]
    np.testing.assert_allclose(actual["weights"], expected["weights"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scripted_steps_have_the_versions_counts_and_weights_of_the_simulator(trained: Any, name: str) -> None:
    scenario, actual = SCENARIOS[name], trained[name]
    own = scenario.simulated_optimizer()
    optimizer: Any = (
        simulator.Adam(own.rate, beta_1=own.beta_1, beta_2=own.beta_2)
        if isinstance(own, Adam)
        else simulator.SGD(own.rate, momentum=own.momentum)
    )
    expected = simulator.asynchronous(
        lambda worker, step, weights: ([gradient_of(worker, step, weights[0])], 1),
        [np.zeros(FEATURES + 1)],
        workers=WORKERS,
        optimizer=optimizer,
        staleness=simulator.Staleness(bound=scenario.staleness.bound, **scenario.simulated),
        order=[event for event in events_of(scenario, workers=WORKERS) if event[0] != "ask"],
    )
    assert actual["counts"][-1] == [expected.version, expected.applied, expected.dropped, expected.pending]
    assert {tau: count for tau, count in enumerate(actual["histogram"]) if count} == expected.histogram()
    np.testing.assert_allclose(actual["weights"], expected.weights[0], rtol=0, atol=1e-10)


def test_the_scripts_have_stale_dropped_and_waiting_gradients() -> None:
    results = {
        name: simulate(events_of(one, workers=WORKERS), one.simulated_optimizer(), **one.simulated)
        for name, one in SCENARIOS.items()
    }
    assert all(sum(one["histogram"][2:]) > 3 for name, one in results.items() if "soft_sync" not in name)
    assert sum(kind == "ask" for kind, _ in events_of(SCENARIOS["bound"], workers=WORKERS)) > 5
    assert all(one["counts"][-1][2] > 0 for name, one in results.items() if "drop" in name)
