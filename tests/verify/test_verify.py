"""tfdist verify finds equal programs equal, and names the cause of each planted error."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.processes import ROOT, finish, run, start
from tfdist.verify import main
from tfdist.verify.cli import program_in
from tfdist.verify.report import verdict_text
from tfdist.verify.values import topologies
from tfdist.verify.verification import Verification, Verifier

PLANTED = str(ROOT / "tests" / "verify" / "planted.py")


def verified(name: str, *, replicas: tuple[int, ...] = (2,), workers: int = 0) -> Verification:
    verifier = Verifier([PLANTED, name], steps=4, timeout_seconds=180, say=print)
    return verifier.verify(topologies(replicas=replicas, workers=workers))


def test_an_equal_program_is_equal_on_every_topology_and_the_command_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist.verify", "--steps", "4", "--json", "result.json", "--", PLANTED, "equal"]
    ended = run(command, cwd=tmp_path, deadline_seconds=300)
    assert ended.code == 0
    assert "equal to" in ended.text
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["equal"] and result["floatx"] == "float64" and result["steps"] == 4
    assert [one["name"] for one in result["topologies"]] == ["2 replicas", "4 replicas", "2 workers"]
    assert max(one["largest"] for one in result["topologies"]) < 1e-12


@pytest.mark.parametrize(
    ("name", "cause", "is_proven"),
    [
        ("batch_normalization", "batch normalization", True),
        pytest.param("dropout", "random layers", True, marks=pytest.mark.full),
        pytest.param("sum_of_rows", "division", True, marks=pytest.mark.full),
        pytest.param("division_by_a_constant", "division", True, marks=pytest.mark.full),
        pytest.param("mixed_division", "division", False, marks=pytest.mark.full),
        pytest.param("batch_for_each_replica", "data", True, marks=pytest.mark.full),
        pytest.param("scaled_learning_rate", "settings", True, marks=pytest.mark.full),
        pytest.param("own_statistics", "statistics over the batch", True, marks=pytest.mark.full),
        pytest.param("contrastive_loss", "statistics over the batch", False, marks=pytest.mark.full),
        pytest.param("gradients_clipped_before_the_sum", "statistics over the batch", False, marks=pytest.mark.full),
        pytest.param("initial_weights_of_each_topology", "settings", True, marks=pytest.mark.full),
        pytest.param("loop_without_division", "division", False, marks=pytest.mark.full),
        pytest.param("other_rows_on_batch", "data", True, marks=pytest.mark.full),
    ],
)
def test_the_cause_of_a_planted_error_is_named(name: str, cause: str, is_proven: bool) -> None:
    result = verified(name)
    (verdict,) = result.verdicts
    assert result.exit_code == 1 and verdict_text(verdict).startswith("differs")
    assert [(one.name, one.is_proven) for one in verdict.causes] == [(cause, is_proven)]


@pytest.mark.full
def test_rounding_that_the_optimizer_amplifies_is_no_difference() -> None:
    (verdict,) = verified("bias_before_normalization").verdicts
    assert verdict.is_equal and verdict.comparison is not None and verdict.comparison.largest > 1e-10
    assert [cause.name for cause in verdict.causes] == ["rounding"]


@pytest.mark.full
def test_a_program_that_cannot_run_in_float64_runs_in_float32() -> None:
    result = verified("equal_in_float32")
    assert result.is_equal and result.floatx == "float32" and "float" in result.reason


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tfdist.verify", "--", PLANTED, "equal"]
    process = start(command, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    while not list(tmp_path.glob("tfdist-verify-*/1/logs/*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    ended = finish(process, deadline_seconds=60)
    assert ended.code == 130
    assert ended.text.splitlines()[-1] == "tfdist verify: interrupted; all processes have ended"
    assert not list(tmp_path.iterdir())
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in running if str(tmp_path).encode() in line]


@pytest.mark.full
def test_workers_that_read_the_same_rows_are_named() -> None:
    (verdict,) = verified("same_rows_on_all_workers", replicas=(), workers=2).verdicts
    assert [(one.name, one.is_proven) for one in verdict.causes] == [("data", True)]
    assert "all workers read the same 8 rows" in verdict.causes[0].text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "expected a Python program after --, received nothing; write it as in `tfdist verify -- python train.py`.",
        ),
        (["--", "ls"], "expected a Python program after --, received ls; write it as in"),
        (["--", "none.py"], "expected a program that exists, received none.py."),
        (["--replicas", "two", "--", PLANTED], "expected numbers separated by commas for --replicas, received 'two'."),
        (["--replicas", "1", "--", PLANTED], "expected each number of replicas to be at least 2, received 1."),
        (["--workers", "1", "--", PLANTED], "expected at least 2 workers, or 0 for none, received 1."),
        (
            ["--replicas", "", "--workers", "0", "--", PLANTED],
            "expected replicas or workers to compare with one device",
        ),
        (["--steps", "0", "--", PLANTED], "expected --steps to be at least 1, received 0."),
        (["--timeout-seconds", "0", "--", PLANTED], "expected --timeout-seconds above 0, received 0.0."),
        (
            ["--json", "none/a.json", "--", PLANTED],
            "expected a file in a folder that exists for --json, received none/",
        ),
        (
            ["--json", ".", "--", PLANTED],
            "expected a file that can be written for --json, received .; give another.",
        ),
    ],
)
def test_wrong_options_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "python"),
    [
        ("train.py -u", ()),
        ("python -u train.py -u", ("-u",)),
        ("python -uB -W ignore -X dev -m train", ("-uB", "-W", "ignore", "-X", "dev")),
        ("python -Wignore -Xdev -O train.py", ("-Wignore", "-Xdev", "-O")),
    ],
)
def test_options_of_python_are_those_of_the_runs(words: str, python: tuple[str, ...]) -> None:
    found, program = program_in(words.split())
    assert found == (sys.executable, *python)
    assert program[0] in ("train.py", "-m")


def test_the_program_sees_the_options_of_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.py").write_text("raise SystemExit('asserts' if __debug__ else 'no asserts')")
    assert main(["--", "python", "-O", str(tmp_path / "program.py")]) == 2
    assert "no asserts" in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("print('no training')", "received a program without a training step."),
        pytest.param("raise ValueError('no data')", "ValueError: no data", marks=pytest.mark.full),
    ],
)
def test_a_program_that_fails_on_one_device_is_told(program: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    result = Verifier([str(path)], timeout_seconds=120).verify(topologies(replicas=(2,), workers=0))
    assert message in result.error
    assert result.exit_code == 2
