"""LocalSGD with overlap=True: sums that are on the way during the local steps, against a computation in numpy."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from tests.averaging.test_local_sgd import CASES, DEADLINE_SECONDS, check, wanted
from tests.processes import ROOT, launch


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        (1, "average, overlap"),
        pytest.param(2, "average, overlap", marks=pytest.mark.full),
        pytest.param(1, "nesterov, post-local, overlap", marks=pytest.mark.full),
        pytest.param(2, "elastic, overlap", marks=pytest.mark.full),
    ],
)
def test_workers_give_what_numpy_computes(tmp_path: Path, with_native: dict[str, str], devices: int, name: str) -> None:
    given, expected = CASES[name]
    options = json.dumps({**given, "devices": devices})
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.averaging.program", str(tmp_path), options]
    ended = launch(*command, cwd=ROOT, deadline_seconds=DEADLINE_SECONDS, env=with_native)
    assert ended.code == 0
    assert "auto chose tfdist-native" in ended.text
    trained = wanted(2 * devices, given, **expected)
    for worker in range(2):
        found = json.loads((tmp_path / f"{worker}.json").read_text())
        replicas = slice(worker * devices, (worker + 1) * devices)
        check(found, dataclasses.replace(trained, own=trained.own[replicas]))


@pytest.mark.full
def test_workers_that_send_with_tensorflow_are_refused(tmp_path: Path) -> None:
    given, _ = CASES["average, overlap"]
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.averaging.program", str(tmp_path)]
    ended = launch(*command, json.dumps({**given, "devices": 1}), cwd=ROOT, deadline_seconds=DEADLINE_SECONDS)
    assert ended.code != 0
    assert "expected a strategy with the native transport for LocalSGD with overlap=True" in ended.text
