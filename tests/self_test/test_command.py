"""`tfdist test` passes where tfdist works, and names the check and the worker where it does not."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import Finished, run
from tfdist.test import main
from tfdist.test.checks import CHECKS, CLIPPING

SECONDS = 300
TEST = [sys.executable, "-m", "tfdist", "test"]

# Python runs this file at the start of each process. One worker does something wrong in one check.
FAULT = """
import json, os, signal, sys

arguments = sys.orig_argv
if "tfdist.test.worker" in arguments and "checks" in arguments:
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
        from tfdist.test import programs

        right = programs.PROGRAMS["clipping"]

        def program(strategy, workers):
            FAULT
            found = right(strategy, workers)
            return {name: value + WRONG for name, value in found.items()}

        programs.PROGRAMS["clipping"] = program
"""
SERVERS = """
{"cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1"]}, "task": {"type": "chief", "index": 0}}
"""
FAULTS = {
    "wrong": ("pass", "1e-6", r"differs by \d\.\de-\d+ on worker 1"),
    "raises": ("raise RuntimeError('worker 1 has no luck')", "0", "worker 1"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "0", "worker 1"),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "0", "worker 1"),
}


def run_it(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Finished:
    return run([*TEST, *arguments], cwd=folder, deadline_seconds=SECONDS, env=env)


def report_in(text: str) -> dict:
    return json.loads(next(line for line in reversed(text.splitlines()) if line.startswith("{")))


def test_two_workers_on_this_machine_pass_all_checks(tmp_path: Path) -> None:
    ended = run_it(tmp_path, "--json")
    report = report_in(ended.text)
    assert {one["check"]: one["verdict"] for one in report["outcomes"]} == dict.fromkeys(CHECKS, "pass")
    assert (ended.code, report["passed"], report["task"]) == (0, True, "worker 0")
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS)
def test_a_worker_that_fails_is_named_with_the_check(fault: str, tmp_path: Path) -> None:
    action, wrong, said = FAULTS[fault]
    (tmp_path / "sitecustomize.py").write_text(FAULT.replace("FAULT", action).replace("WRONG", wrong))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent.parent.parent)])
    ended = run_it(tmp_path, "--timeout-seconds", "90", env={"PYTHONPATH": path})
    assert ended.code == 1
    last = ended.text.splitlines()[-1]
    assert last.startswith("tfdist test: FAILED on 2 workers")
    assert CLIPPING in last
    lines = "\n".join(line for line in ended.text.splitlines() if line.startswith("tfdist test:"))
    assert re.search(said, lines)


@pytest.mark.full
def test_it_runs_in_the_tasks_of_a_launcher(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "tfdist", "launch", "--workers", "3", "--", "tfdist", "test", "--json"]
    ended = run(launcher, cwd=tmp_path, deadline_seconds=SECONDS)
    assert ended.code == 0
    (line,) = [line for line in ended.text.splitlines() if '"outcomes"' in line]
    assert line.startswith("[worker 0] ")
    report = json.loads(line.partition("] ")[2])
    assert report["passed"]
    assert report["where"] == "3 workers of tfdist launch"


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        (["--timeout-seconds", "0"], {}, "expected --timeout-seconds above 0, received 0."),
        (["--workers", "1"], {}, "expected --workers to be at least 2, received 1."),
        (["--worker", "2"], {}, "unrecognized arguments: --worker 2; did you mean --workers?"),
        (
            ["--workers", "2"],
            {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 0}}'},
            "expected no --workers in a task of a cluster, which has 3, received 2; leave it out.",
        ),
        (
            [],
            {"TF_CONFIG": SERVERS},
            "expected a cluster of workers, received one with parameter servers; start `tfdist test` without them.",
        ),
        ([], {"TFDIST_ENVIRONMENT": "cloud"}, "expected TFDIST_ENVIRONMENT to be one of "),
    ],
)
def test_what_it_cannot_do_is_refused_in_one_sentence(arguments, environment, says, monkeypatch, capsys) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_the_evaluator_has_nothing_to_test(monkeypatch, capsys) -> None:
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "evaluator", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", config)
    assert main([]) == 0
    assert "the evaluator takes no part" in capsys.readouterr().err
