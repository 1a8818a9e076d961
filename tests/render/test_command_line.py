"""The command `tfdist render`: its output, its last line, and what it refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.render.test_job import NEEDED
from tfdist.render import SCHEDULERS, Job, main, render

COMMAND = ["--", "python", "train.py", "--epochs", "3", "--", "x"]


def options_of(scheduler: str) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in NEEDED[scheduler].items()]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_file_is_printed_and_the_last_line_submits_it(scheduler: str, capsys, tmp_path: Path) -> None:
    assert main([scheduler, "--name", "digits", "--nodes", "2", *options_of(scheduler), *COMMAND]) == 0
    printed = capsys.readouterr()
    job = Job(command=tuple(COMMAND[1:]), name="digits", nodes=2)
    assert printed.out == render(scheduler, job, **NEEDED[scheduler])
    (line,) = printed.err.splitlines()
    suffix = SCHEDULERS[scheduler].suffix
    assert line.startswith(f"tfdist render: save this file as digits{suffix}, and submit it with: ")
    assert line.endswith(f"digits{suffix}")

    file = tmp_path / "my file"
    assert main([scheduler, f"--output={file}", "--name=digits", "--nodes=2", *options_of(scheduler), *COMMAND]) == 0
    again = capsys.readouterr()
    assert (again.out, file.read_text()) == ("", printed.out)
    assert again.err.splitlines()[-1].endswith(f"'{file}'")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_help_has_the_options_that_are_honoured(scheduler: str, capsys) -> None:
    assert main([scheduler, "--help"]) == 0
    text = capsys.readouterr().out
    for option in SCHEDULERS[scheduler].options:
        assert option in text
    assert ("--tasks-per-node" in text) == (scheduler == "slurm")
    assert f"tfdist render {scheduler} --" in text


def test_all_options_reach_the_job(capsys) -> None:
    words = "slurm --nodes 4 --tasks-per-node 2 --cpus 3 --gpus 1 --memory-gib 8 --time 2h --max-restarts 7 --env A=b=c"
    assert main([*words.split(), "--restart-failures", "--grace-seconds=90", "--setup", "a b", *COMMAND]) == 0
    job = Job(
        command=tuple(COMMAND[1:]),
        nodes=4,
        tasks_per_node=2,
        cpus=3,
        gpus=1,
        memory_gib=8,
        seconds=7200,
        env={"A": "b=c"},
        max_restarts=7,
        restart_failures=True,
        grace_seconds=90,
    )
    assert capsys.readouterr().out == render("slurm", job, setup=["a b"])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_example_of_the_help_has_what_the_scheduler_needs(scheduler: str, capsys) -> None:
    assert main([scheduler, "--help"]) == 0
    example = capsys.readouterr().out.splitlines()[-1].partition("tfdist render ")[2]
    values = {"ARN": "arn:aws:iam::123456789012:role/train", "S3URI": "s3://bucket/run", "TYPE": "ml.g5.2xlarge"}
    assert main([values.get(word, word) for word in example.split()]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slrum", *COMMAND], "expected one of the schedulers slurm, .*, received 'slrum'; did you mean slurm\\? run"),
        (["slurm", "--ndoes", "2", *COMMAND], "unrecognized arguments: --ndoes 2; did you mean --nodes\\?"),
        (["slurm"], "expected a command after --, received none; write for example `tfdist render slurm"),
        (["slurm", "--nodes", "2", "--"], "expected a command after --, received none"),
        (["slurm", "python", "train.py"], "unrecognized arguments: python train.py"),
        (
            ["slurm", "--image", "x", *COMMAND],
            "expected options of slurm, received --image, which only jobset, trainjob,",
        ),
        (["slurm", "--spot", *COMMAND], "expected options of slurm, received --spot, which only sagemaker, vertex can"),
        (["jobset", *COMMAND], "the following arguments are required: --image"),
        (
            ["ray", "--time", "1h", *COMMAND],
            "expected no --time for Ray, received 3600; Ray has no time limit for jobs",
        ),
        (["slurm", "--env", "A", *COMMAND], "expected --env KEY=VALUE, received 'A'"),
        (["slurm", "--time", "30", *COMMAND], "expected a time such as 2:00:00, .* received '30'"),
        (["slurm", "--name", "a/b", *COMMAND], "expected --name of at most 100 characters for Slurm"),
    ],
)
def test_wrong_command_lines_are_refused(words: list[str], message: str, capsys) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    last = printed.err.splitlines()[-1]
    assert re.search(message, last), last


def test_a_file_that_cannot_be_written_is_an_error(capsys, tmp_path: Path) -> None:
    assert main(["slurm", f"--output={tmp_path}/no/file", *COMMAND]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_without_a_scheduler_the_schedulers_are_listed(capsys) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in SCHEDULERS)
    assert main([]) == 2


def test_tensorflow_is_not_imported_and_the_file_is_read_by_programs_that_end_early() -> None:
    program = (
        "import sys; from tfdist._cli import main; code = main(sys.argv[1:]); "
        "print(code, {'tensorflow', 'keras', 'ray'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "render", "slurm", *COMMAND],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "0 set()"
    assert done.stdout.startswith("#!/usr/bin/env bash\n")
