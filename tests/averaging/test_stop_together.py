"""A callback that ends the training on one worker ends it on all workers, after the same step, and nobody waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, launch


@pytest.mark.parametrize(
    ("every", "steps_per_epoch", "expected"),
    [
        pytest.param(1000, 20, {"steps": 20, "epochs": 1}, id="at the end of the epoch"),
        pytest.param(8, 300, {"steps": 104, "epochs": 1}, id="at a meeting"),
    ],
)
def test_both_workers_end_after_the_same_step(
    tmp_path: Path, every: int, steps_per_epoch: int, expected: dict[str, int]
) -> None:
    program = "tests.averaging.programs.stops"
    command = ["--workers", "2", "--", sys.executable, "-m", program, str(tmp_path), str(every), str(steps_per_epoch)]
    ended = launch(*command, cwd=ROOT, deadline_seconds=180.0)
    assert ended.code == 0, ended
    assert [json.loads((tmp_path / f"{worker}.json").read_text()) for worker in range(2)] == [expected] * 2
    assert "this worker ends the training, which goes on until all workers look together" in ended.text
