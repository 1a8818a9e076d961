"""LocalSGD with overlap=True: sums that are on the way during the local steps, against a computation in numpy."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdist
from tests.averaging import oracle, program
from tests.averaging.test_local_sgd import (
    CASES,
    COMPRESSED,
    DEADLINE_SECONDS,
    FLOAT32,
    TRAFFIC,
    check,
    on_workers,
    wanted,
)
from tests.processes import ROOT, launch

FULL = pytest.mark.full


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (1, "average, overlap"),
        pytest.param(2, "average, overlap", marks=FULL),
        pytest.param(1, "nesterov, post-local, overlap", marks=FULL),
        pytest.param(2, "elastic, overlap", marks=FULL),
    ],
)
def test_workers_give_what_numpy_computes(tmp_path: Path, with_native: dict[str, str], devices: int, name: str) -> None:
    given, expected = CASES[name]
    trained = wanted(2 * devices, given, **expected)
    for worker, found in enumerate(on_workers(tmp_path, devices, given, with_native)):
        check(found, of_worker(trained, worker, devices))


@pytest.mark.parametrize(
    ("devices", "more"),
    [
        # The collectives of PowerSGD need each other: the second one begins in the middle of a round, at the next
        # meeting, or when the weights are read.
        (1, {}),
        *(pytest.param(1, more, marks=FULL) for more in ({"every": 1}, {"every": 2}, {"every": 5}, {"settles": True})),
        pytest.param(2, {}, marks=FULL),
        pytest.param(2, {"settles": True}, marks=FULL),
        pytest.param(2, {"every": 1, "loop": "eager"}, marks=FULL),
        pytest.param(1, {"outer": "nesterov", "rule": {"rate": 0.7, "momentum": 0.9}}, marks=FULL),
    ],
)
def test_workers_that_compress_give_what_numpy_computes(
    tmp_path: Path, with_native: dict[str, str], devices: int, more: dict[str, Any]
) -> None:
    given = {**COMPRESSED, "overlap": True, **more}
    rule = {"outer": "nesterov", "outer_rate": 0.7, "outer_momentum": 0.9} if "outer" in more else {}
    is_loop = "loop" in given
    trained = wanted(2 * devices, given, rank=1, average_slots=False, overlap=True, is_loop=is_loop, **rule)
    for worker, found in enumerate(on_workers(tmp_path, devices, given, with_native)):
        check(found, of_worker(trained, worker, devices), FLOAT32)
        if devices == 1 and given["every"] == 4:
            assert found["traffic"] == TRAFFIC


@FULL
@pytest.mark.usefixtures("four_cpus", "no_surroundings")
@pytest.mark.parametrize("compression", ["topk of all", "threshold of all", "fp16"])
def test_compressions_in_the_background_give_what_they_give_at_once(
    tmp_path: Path, with_native: dict[str, str], compression: str
) -> None:
    given = {**COMPRESSED, "overlap": True, "compressed_by": compression}
    at_once = program.train(tfdist.create_strategy("mirrored", devices=2), **given)
    for worker, found in enumerate(on_workers(tmp_path, 1, given, with_native)):
        for name in ("seen", "own"):
            for one, other in zip(found[name], at_once[name], strict=True):
                want = other[worker] if name == "own" else other
                np.testing.assert_allclose(one[0] if name == "own" else one, want, rtol=0, atol=1e-6)


def of_worker(trained: oracle.Trained, worker: int, devices: int) -> oracle.Trained:
    replicas = slice(worker * devices, (worker + 1) * devices)
    return dataclasses.replace(trained, own=trained.own[replicas], slots=trained.slots[replicas])


@FULL
def test_workers_that_send_with_tensorflow_are_refused(tmp_path: Path) -> None:
    given, _ = CASES["average, overlap"]
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.averaging.program", str(tmp_path)]
    ended = launch(*command, json.dumps({**given, "devices": 1}), cwd=ROOT, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code != 0
    assert "expected a strategy with the native transport for LocalSGD with overlap=True" in ended.text
