"""A worker that dies, or is silent, is named on all others, whose processes live on."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import launch, run

SURVIVORS = Path(__file__).with_name("survivors.py")


def test_a_killed_worker_is_named_and_the_others_live_on(train):
    trained = train("native", "kill", workers=3, code=1)
    assert len(trained.results) == 2
    for result in trained.results:
        # TensorFlow allows UnavailableError to its own operations only.
        assert result["error"] == "AbortedError"
        assert "lost worker 1: its process ended" in result["message"]
        assert result["after"]


def test_a_silent_worker_is_named_after_the_deadline(train):
    trained = train("native", "sleep", code=1)
    result = trained.results[0]
    assert result["error"] == "DeadlineExceededError"
    assert "within 5 s, waited for worker 1; find out in its log what it does instead" in result["message"]


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.full)])
def test_a_stopped_worker_is_named_by_all_others_outside_of_training(tmp_path, with_native, workers):
    folder = tmp_path / "found"
    folder.mkdir()
    command = ["--workers", str(workers), "--", sys.executable, "-m", "tests.native.silent_rank", str(folder)]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    found = re.findall(r"SILENT (\d) ([\d.]+) .* within 7.25 s, waited for worker 1;", ended.text)
    assert sorted(int(worker) for worker, _ in found) == [worker for worker in range(workers) if worker != 1]
    assert all(float(seconds) < 15 for _, seconds in found)


@pytest.mark.full
def test_the_ranks_that_are_left_connect_again_and_sum_on_in_the_same_process(tmp_path, with_native):
    ended = run([sys.executable, str(SURVIVORS), str(tmp_path)], cwd=tmp_path, deadline_seconds=90.0, env=with_native)
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("found-*.json"))]
    assert f"CODES [0, {-signal.SIGKILL}, 0]" in ended.text
    assert len(found) == 2
    for rank in found:
        assert rank["first"] == 1 + 2 + 3
        assert "lost rank 1: its process ended" in rank["error"]
        assert rank["second"] == [1 + 3] * 20
        assert rank["pid"] == rank["pid_after"]
