from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.launch.args import parse, split_command
from tfdist.launch.cli import main
from tfdist.launch.scale import Elastic


@pytest.mark.parametrize(
    ("argv", "options", "command"),
    [
        (["--workers", "2", "--", "python", "t.py", "--x"], ["--workers", "2"], ["python", "t.py", "--x"]),
        (["--workers=2", "t.py", "--workers", "9"], ["--workers=2"], ["t.py", "--workers", "9"]),
        (["--chief", "t.py"], ["--chief"], ["t.py"]),
        (["--env", "A=1", "-m", "pkg", "--", "b"], ["--env", "A=1"], ["-m", "pkg", "--", "b"]),
        (["--", "-m", "pkg"], [], ["-m", "pkg"]),
        (["--workers", "2"], ["--workers", "2"], []),
    ],
)
def test_the_command_begins_after_a_double_dash_or_at_a_module_or_plain_word(
    argv: list[str], options: list[str], command: list[str]
) -> None:
    assert split_command(argv) == (options, command)


def test_options_become_a_spec() -> None:
    line = (
        "--workers 3 --ps 1 --chief --evaluator --host 127.0.0.1 --port-base 4000 --log-dir logs --grace-seconds 1 "
        "--evaluator-grace-seconds 2 --timeout-seconds 3 --threads-per-rank 4 --env A=1 --env B=x=y t.py"
    )
    spec = parse(line.split())
    assert (spec.workers, spec.ps, spec.chief, spec.evaluator, spec.host) == (3, 1, True, True, "127.0.0.1")
    assert (spec.port_base, spec.log_dir, spec.threads_per_task) == (4000, Path("logs"), 4)
    assert (spec.grace_seconds, spec.evaluator_grace_seconds, spec.timeout_seconds) == (1.0, 2.0, 3.0)
    assert spec.env == {"A": "1", "B": "x=y"}
    assert spec.command == ("t.py",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--workers 2", "tfdist launch: expected a command to run, received none; write it after `--`"),
        ("--workers 0 -- x", "tfdist launch: expected at least one task, received none;"),
        ("--workers -1 -- x", "tfdist launch: expected --workers to be 0 or more, received -1."),
        ("--env A -- x", "tfdist launch: expected --env KEY=VALUE, received 'A'; write it as in --env"),
        ("--env =1 -- x", "tfdist launch: expected --env KEY=VALUE, received '=1'"),
        ("--workers many -- x", "argument --workers: invalid int value: 'many'"),
        ("--wokers 2 -- x", "unrecognized arguments: --wokers"),
        ("--host 192.0.2.1 -- true", "tfdist launch: expected --host to be a name or address of this machine"),
    ],
)
def test_refusals_are_printed_with_exit_code_2(argv: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv.split()) == 2
    assert message in capsys.readouterr().err


def test_options_of_restarts_become_a_spec() -> None:
    line = (
        "--max-restarts 3 --restart-budget-seconds 600 --max-preemptions 9 --restart-grace-seconds 0.5 --standby "
        "--workers 2 --elastic 1:4 t.py"
    )
    spec = parse(line.split())
    assert (spec.max_restarts, spec.restart_budget_seconds, spec.max_preemptions) == (3, 600.0, 9)
    assert (spec.restart_grace_seconds, spec.standby, spec.elastic) == (0.5, True, Elastic(least=1, most=4))


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for option in ("--workers", "--ps", "--chief", "--evaluator", "--port-base", "--timeout-seconds", "--env"):
        assert option in text
