"""Results that nobody uses are waited for, and not kept."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.processes import launch, run


def test_a_function_waits_for_an_unused_barrier_and_keeps_no_unused_sums(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = ["--workers", "2", "--", sys.executable, "-m", "tests.native.unused_results"]
    ended = launch(*command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    # Worker 1 is 3 s late.
    waited = sorted(float(found) for found in re.findall(r"waited ([\d.]+) s", ended.text))
    assert len(waited) == 2
    assert waited[1] > 2
    grown = [int(found) for found in re.findall(r"grown by (-?\d+) MB", ended.text)]
    assert len(grown) == 2
    # 60 sums of 8 MB.
    assert max(grown) < 60 * 8 / 4


def test_a_step_may_start_thousands_of_sums_before_it_asks_for_a_result(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tests.native.many_results"]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert f"RIGHT {2 * 5000}" in ended.text


def test_results_that_are_kept_for_a_later_step_are_freed_with_the_communicator(
    tmp_path: Path, with_native: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "tests.native.kept_results"]
    ended = run(command, cwd=tmp_path, deadline_seconds=120.0, env=with_native)
    assert ended.code == 0
    assert (
        ended.text.count("expected a TfdistStart for each TfdistWait, of a communicator that has not been closed") == 9
    )
    # Two ranks keep 10 results of 8 MB in each of 4 cycles.
    assert int(re.findall(r"grown by (-?\d+) MB", ended.text)[0]) < 4 * 160 / 4
