"""If one replica of a process fails, its step ends at once, although other replicas would wait for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import launch, run

WORDS = ["-m", "tests.native.failing_replica"]
# A step that hangs is killed then. Without a hang, the program takes a few seconds after its imports.
DEADLINE_SECONDS = 120.0


@pytest.mark.parametrize(
    ("word", "message"),
    [
        # The gradient of an embedding is sparse: its rows are gathered.
        ("fit", "indices[7,0] = 99 is not in [0, 10)"),
        ("function", "a replica failed : Tensor had NaN values"),
    ],
)
def test_the_step_of_a_process_ends_with_the_error_of_its_replica(
    tmp_path: Path, with_native: dict[str, str], word: str, message: str
) -> None:
    command = [sys.executable, *WORDS, word]
    ended = run(command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS, env=with_native)
    assert f"FAILED {word} 0 InvalidArgumentError" in ended.text
    assert message in ended.text
    if word == "fit":
        # Training goes on with the same strategy.
        assert "AGAIN True" in ended.text


@pytest.mark.parametrize(
    ("word", "line"), [("interrupt", "AFTER True"), ("graph", "SUMS [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]")]
)
def test_replicas_of_a_process_sum_after_an_interrupt_and_around_a_graph_of_tensorflow_1(
    tmp_path: Path, with_native: dict[str, str], word: str, line: str
) -> None:
    ended = run([sys.executable, *WORDS, word], cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS, env=with_native)
    assert line in ended.text


def test_a_worker_whose_replica_fails_ends_and_is_named_by_the_others(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = ["--workers", "2", "--log-dir", "logs", "--", sys.executable, *WORDS, "function"]
    launch(*command, cwd=tmp_path, deadline_seconds=DEADLINE_SECONDS, env=with_native)
    first, second = ((tmp_path / "logs" / f"worker-{index}.log").read_text() for index in range(2))
    assert "FAILED function 1 InvalidArgumentError" in second
    assert "a replica failed : Tensor had NaN values" in second
    assert "FAILED function 0 AbortedError" in first
    assert "lost replica 0 of worker 1: its process ended" in first or "lost replica 1 of worker 1" in first
