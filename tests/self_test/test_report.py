"""The verdict of `tfdist test` follows from the outcomes, and nothing that failed is left out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfdist.test.checks import CHECKS, CLIPPING, RESUME, Outcome, Record, completed
from tfdist.test.process import run
from tfdist.test.report import Report, as_text, verdict
from tfdist.test.worker import judged

PASSED = tuple(Outcome(check=check, verdict="pass", seconds=1.0) for check in CHECKS)
REPORT = Report(task="worker 0", where="2 workers", outcomes=PASSED, seconds=40.4)


def test_all_checks_have_to_pass() -> None:
    assert REPORT.has_passed
    assert verdict(REPORT) == f"tfdist test: PASSED: all {len(CHECKS)} checks on 2 workers, in 40 s"
    assert not dataclasses.replace(REPORT, outcomes=PASSED[:-1]).has_passed
    for other in ("fail", "not run"):
        assert not dataclasses.replace(REPORT, outcomes=(*PASSED[:-1], Outcome(check=RESUME, verdict=other))).has_passed


def test_a_failure_is_in_the_table_and_in_the_last_line_with_what_other_tasks_have_seen() -> None:
    outcomes = completed(PASSED[:3], failed=CLIPPING, reason="worker 1 did not come")
    report = dataclasses.replace(REPORT, outcomes=outcomes, output="ValueError: [red]no[/red]")
    other = dataclasses.replace(
        report, task="worker 1", outcomes=completed([], failed=CLIPPING, reason="worker 1 was ended by SIGKILL")
    )
    lines = as_text(report, [other]).splitlines()
    assert lines[-1] == f"tfdist test: FAILED on 2 workers: {CLIPPING}: worker 1 did not come"
    assert lines[-2] == f"tfdist test: worker 1: {CLIPPING}: worker 1 was ended by SIGKILL"
    assert lines[-3] == "ValueError: [red]no[/red]"
    assert sum("not run" in line for line in lines) == len(CHECKS) - 4


def test_a_check_that_has_failed_keeps_its_own_reason() -> None:
    failed = Outcome(check=CLIPPING, verdict="fail", text="kernel differs")
    (found,) = [one for one in completed([failed], failed=CLIPPING, reason="ended") if one.check == CLIPPING]
    assert found == failed


def test_a_record_that_a_kill_has_cut_off_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    assert (record.running(), record.outcomes()) == ("", [])
    record.end(PASSED[0])
    record.begin(CLIPPING)
    with (tmp_path / "record").open("a") as file:
        file.write('{"check": "clip')
    assert record.outcomes() == [PASSED[0]]
    assert record.running() == CLIPPING


@pytest.mark.parametrize("wrong", [1.1e-10, float("inf"), float("nan")])
def test_numbers_that_differ_are_named_with_the_worker(wrong: float) -> None:
    is_right, text = judged([(0.0, 0), (wrong, 1), (0.0, 0)], ["loss", "kernel"])
    assert not is_right
    assert text.startswith("kernel differs by ")
    assert text.endswith(" on worker 1")


def test_a_process_that_runs_too_long_is_killed(tmp_path: Path) -> None:
    begun = time.monotonic()
    ended = run(
        ["-c", "print('here', flush=True); import time; time.sleep(600)"],
        environment={},
        log=tmp_path / "log",
        deadline=begun + 2.0,
    )
    assert ended.is_late
    assert (ended.signal_name, ended.text) == ("SIGKILL", "here\n")
    assert time.monotonic() - begun < 30


def test_a_process_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    program = "from tfdist.test.parent import end_with_parent; end_with_parent(); import time; time.sleep(600)"
    started = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 1
    assert time.monotonic() - started < 30
