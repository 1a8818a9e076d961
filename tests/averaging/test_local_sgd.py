"""LocalSGD against a computation in numpy, and against synchronous training."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.averaging import oracle, program
from tests.processes import ROOT, launch

DEADLINE_SECONDS = 180.0
EXACT = {"rtol": 0, "atol": 1e-10}


def check(found: dict[str, Any], expected: oracle.Trained, atol: float = 1e-10) -> None:
    bound = {"rtol": 0, "atol": atol}
    for own, want in zip(found["own"], zip(*expected.own, strict=True), strict=True):
        for one, other in zip(own, want, strict=True):
            np.testing.assert_allclose(one, other, **bound)
    # Without momentum there are no slots. The oracles of gossip do not keep them.
    wanted_slots = list(zip(*expected.slots, strict=True)) if found["slots"] else []
    for slots, want in zip(found["slots"], wanted_slots, strict=bool(wanted_slots)):
        for one, other in zip(slots, want, strict=True):
            np.testing.assert_allclose(one, other, **bound)
    for seen, want in zip(found["seen"], expected.seen, strict=True):
        np.testing.assert_allclose(seen, want, **bound)


CASES = {
    "average": ({"every": 4}, {}),
    "average, every step": ({"every": 1}, {}),
    # What synchronous SGD computes.
    "average, every step, momentum": ({"every": 1, "momentum": 0.75}, {"start_step": 50, "momentum": 0.75}),
    "average, a schedule": ({"every": lambda step: step // 10 + 1}, {}),
    "average, momentum": ({"every": 4, "momentum": 0.75}, {"momentum": 0.75}),
    "average, momentum, own slots": (
        {"every": 4, "momentum": 0.75, "average": ["weights"]},
        {"momentum": 0.75, "average_slots": False},
    ),
    "post-local": ({"every": 4, "start_step": 9, "momentum": 0.75}, {"start_step": 9, "momentum": 0.75}),
    "block momentum": (
        {"every": 4, "outer": "block_momentum", "rule": {"rate": 0.9, "momentum": 0.4}},
        {"outer": "block_momentum", "outer_rate": 0.9, "outer_momentum": 0.4},
    ),
    "nesterov": (
        {"every": 4, "outer": "nesterov", "rule": {"rate": 0.7, "momentum": 0.9}, "momentum": 0.5},
        {"outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9, "momentum": 0.5},
    ),
    "nesterov, post-local": (
        {"every": 4, "outer": "nesterov", "rule": {"rate": 0.7, "momentum": 0.9}, "start_step": 7},
        {"outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9, "start_step": 7},
    ),
    "elastic": (
        {"every": 4, "outer": "elastic", "rule": {"rate": 0.3}, "average": ["weights"], "momentum": 0.5},
        {"outer": "elastic", "outer_rate": 0.3, "average_slots": False, "momentum": 0.5},
    ),
    # A meeting after every step is no synchronous step: each replica divides by its own rows.
    "elastic, every step": (
        {"every": 1, "outer": "elastic", "rule": {"rate": 0.3}, "average": ["weights"]},
        {"outer": "elastic", "outer_rate": 0.3, "average_slots": False},
    ),
    "elastic, post-local": (
        {"every": 4, "outer": "elastic", "rule": {"rate": 0.3}, "average": ["weights"], "start_step": 7},
        {"outer": "elastic", "outer_rate": 0.3, "average_slots": False, "start_step": 7},
    ),
    "elastic, momentum": (
        {"every": 4, "outer": "elastic", "rule": {"rate": 0.3}, "momentum": 0.5},
        {"outer": "elastic", "outer_rate": 0.3, "momentum": 0.5},
    ),
}
LATE = {"overlap": True, "average": ["weights"]}
LATE_CASES = {
    "average": ({"every": 4, "momentum": 0.75, **LATE}, {"momentum": 0.75}),
    "average, every step": ({"every": 1, **LATE}, {}),
    "nesterov, post-local": (
        {"every": 4, "outer": "nesterov", "rule": {"rate": 0.7, "momentum": 0.9}, "start_step": 7, **LATE},
        {"outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9, "start_step": 7},
    ),
    "elastic": (
        {"every": 4, "outer": "elastic", "rule": {"rate": 0.3}, "momentum": 0.5, **LATE},
        {"outer": "elastic", "outer_rate": 0.3, "momentum": 0.5},
    ),
}
for late, (options, computed) in LATE_CASES.items():
    CASES[f"{late}, overlap"] = (options, {**computed, "overlap": True, "average_slots": False})
# Compressions take float32 only.
COMPRESSED = {"every": 4, "average": ["weights"], "dtype": "float32", "compressed_by": "powersgd of all"}
FLOAT32 = 1e-5
# Of 50 steps: twelve meetings, the factors of 4 and 3 elements for a matrix of 12, and 7 elements uncompressed. Each of
# two replicas sends as many elements as it sums.
TRAFFIC = [12, 12 * 4 * (4 + 3 + 7), 12 * 4 * (12 + 7)]


def wanted(replicas: int, given: dict[str, Any], **expected: Any) -> oracle.Trained:
    every = given["every"]

    def steps_to_meeting(step: int) -> int:
        return every(np.int64(step)) if callable(every) else every

    return oracle.train(replicas, 50, every=steps_to_meeting, **expected)


FULL = pytest.mark.full
# What other cases contain, or what the tests of workers and of loops train.
IN_FULL = [
    "average",
    "average, every step",
    "average, every step, momentum",
    "average, momentum",
    "post-local",
    "nesterov",
    "nesterov, post-local",
    "elastic",
    "elastic, post-local",
    "average, overlap",
    "average, every step, overlap",
    "elastic, overlap",
]


@pytest.mark.parametrize("name", [pytest.param(name, marks=FULL) if name in IN_FULL else name for name in CASES])
def test_fit_gives_what_numpy_computes(strategy: Any, name: str) -> None:
    given, expected = CASES[name]
    check(program.train(strategy, **given), wanted(2, given, **expected))


@pytest.mark.parametrize("overlap", [False, pytest.param(True, marks=FULL)])
def test_compressed_changes_give_what_numpy_computes(strategy: Any, overlap: bool) -> None:
    given = {**COMPRESSED, "overlap": overlap}
    found = program.train(strategy, **given)
    check(found, wanted(2, given, rank=1, average_slots=False, overlap=overlap), FLOAT32)
    assert found["traffic"] == TRAFFIC


@pytest.mark.parametrize(
    "name",
    [
        "nesterov, post-local",
        *(
            pytest.param(name, marks=FULL)
            for name in ("nesterov, post-local, overlap", "average, momentum", "post-local", "elastic")
        ),
    ],
)
def test_a_loop_of_ones_own_gives_what_numpy_computes(strategy: Any, name: str) -> None:
    given, expected = CASES[name]
    found = program.train(strategy, loop="own", **given)
    check(found, wanted(2, given, is_loop=True, **expected))


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (1, "average, momentum"),
        (2, "average, every step, momentum"),
        *(
            pytest.param(*case, marks=FULL)
            for case in (
                (2, "average, momentum"),
                (1, "average, every step, momentum"),
                *((devices, name) for devices in (1, 2) for name in ("nesterov, post-local", "post-local", "elastic")),
            )
        ),
    ],
)
def test_workers_give_what_numpy_computes(tmp_path: Path, devices: int, name: str) -> None:
    given, expected = CASES[name]
    found = on_workers(tmp_path, devices, given)
    trained = wanted(2 * devices, given, **expected)
    for worker, result in enumerate(found):
        replicas = slice(worker * devices, (worker + 1) * devices)
        check(result, dataclasses.replace(trained, own=trained.own[replicas], slots=trained.slots[replicas]))


def on_workers(
    folder: Path, devices: int, given: dict[str, Any], environment: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    options = json.dumps({**given, "devices": devices})
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.averaging.program", str(folder), options]
    ended = launch(*command, cwd=ROOT, deadline_seconds=DEADLINE_SECONDS, env=environment)
    assert ended.code == 0, ended
    # Without an environment of its own it depends on what is installed.
    assert environment is None or "auto chose tfdist-native" in ended.text
    return [json.loads((folder / f"{worker}.json").read_text()) for worker in range(2)]


@FULL
@pytest.mark.parametrize("momentum", [0.0, 0.75])
def test_meeting_after_every_step_is_synchronous_training(strategy: Any, momentum: float) -> None:
    found = program.train(strategy, every=1, momentum=momentum)
    synchronous = program.train(strategy, every=1000, start_step=50, momentum=momentum)
    for one, other in zip(found["seen"], synchronous["seen"], strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_other_optimizers_are_averaged_with_their_slots(strategy: Any) -> None:
    found = program.train(strategy, every=5, optimizer="adam")
    for values in (*found["own"], *found["slots"]):
        np.testing.assert_array_equal(values[0], values[1])
    alone = program.train(strategy, every=1000, optimizer="adam", average=["weights"])
    assert np.abs(alone["own"][0][0] - alone["own"][0][1]).max() > 1e-3
