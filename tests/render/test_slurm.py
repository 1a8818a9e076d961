"""The batch script for Slurm: its syntax, what it starts, and when it queues the job again."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.render import Job, render

WORDS = ("two words", "it's", '"$HOME"', "$(pwd) `pwd`", "a;b|c&d", "*", "", "ä\nb", "--", "\\")
FULL = {
    "cpus": 4,
    "gpus": 2,
    "memory_gib": 16,
    "seconds": 5400,
    "env": {"WORDS": "it's $HOME\n`pwd`"},
    "grace_seconds": 120,
}
OPTIONS = {"partition": "gpu", "account": "ml-1", "constraint": "a100&ib", "setup": ["module load cuda", "ulimit -c 0"]}
RECORD = """#!{python}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    names = ("WORDS", "TFDIST_LAUNCH_ID", "TFDIST_ATTEMPT")
    print(json.dumps([*sys.argv, {{name: os.environ.get(name) for name in names}}]), file=file)
sys.exit(int(os.environ.get("CODE", 0)) if sys.argv[0].endswith("srun") else 0)
"""


def script(*command: str, options: dict[str, Any] | None = None, **fields: Any) -> str:
    job = Job(**{"command": command or ("python", "train.py"), "name": "digits", "nodes": 2, **fields})
    return render("slurm", job, **(options or {}))


def directives(text: str) -> dict[str, str]:
    found = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", text, re.M)
    assert len(found) == text.count("#SBATCH")
    return dict(found)


def ran(text: str, folder: Path, *, code: int, restarts: int = 0) -> tuple[int, list[list[Any]]]:
    """Runs a script with programs for srun and scontrol that record their arguments; returns its exit code and them."""
    for name in ("srun", "scontrol", "module"):
        (folder / name).write_text(RECORD.format(python=sys.executable))
        (folder / name).chmod(0o755)
    (folder / "record").unlink(missing_ok=True)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "RECORD": str(folder / "record"),
        "CODE": str(code),
        "SLURM_JOB_ID": "17",
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
    }
    done = subprocess.run(["bash"], input=text, env=environment, timeout=60, text=True, capture_output=True)
    assert done.stderr == ""
    calls = [json.loads(line) for line in (folder / "record").read_text().splitlines()]
    return done.returncode, [[Path(call[0]).name, *call[1:]] for call in calls]


@pytest.mark.parametrize("text", [script(), script(*WORDS, options=OPTIONS, **FULL)], ids=["least", "full"])
def test_shellcheck_finds_nothing(text: str) -> None:
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("shellcheck is not installed")
    # SC2016 and SC1003 are about $ and a backslash in single quotes, which is what the words of this test are for.
    command = [program, "--severity=info", "--exclude=SC2016,SC1003", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def test_directives_are_those_of_the_options() -> None:
    assert directives(script(options=OPTIONS, tasks_per_node=3, **FULL)) == {
        "job-name": "digits",
        "nodes": "2",
        "ntasks": "6",
        "ntasks-per-node": "3",
        "cpus-per-task": "4",
        "gpus-per-task": "2",
        "mem": "48G",
        "time": "1:30:00",
        "partition": "gpu",
        "account": "ml-1",
        "constraint": "a100&ib",
        "output": "%x-%j.log",
        "open-mode": "append",
        "requeue": "",
        "signal": "TERM@120",
    }
    least = ["job-name", "nodes", "ntasks", "ntasks-per-node", "output", "open-mode", "requeue", "signal"]
    assert list(directives(script())) == least


def test_srun_gets_the_command_as_it_is_written(tmp_path: Path) -> None:
    code, calls = ran(script(*WORDS[:1], *WORDS, options=OPTIONS, **FULL), tmp_path, code=0)
    setup, (name, *arguments, variables) = calls
    assert (code, setup[:3], name) == (0, ["module", "load", "cuda"], "srun")
    assert arguments[-len(WORDS) - 1 :] == [WORDS[0], *WORDS]
    assert {"--cpus-per-task=4", "--gpus-per-task=2", "--kill-on-bad-exit=0", "--wait=0"} <= set(arguments)
    assert variables == {"WORDS": FULL["env"]["WORDS"], "TFDIST_LAUNCH_ID": "slurm-17", "TFDIST_ATTEMPT": "0"}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=4))
def test_any_command_is_passed_on(words: list[str]) -> None:
    (line,) = re.findall(r"^srun [^\n]*--distribution=block (.*?) \|\| code=\$\?$", script("x", *words), re.M | re.S)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["x", *words]


def test_the_job_is_queued_again_if_the_setup_ends_the_script_on_errors(tmp_path: Path) -> None:
    ended, calls = ran(script(options={"setup": ["set -euo pipefail"]}), tmp_path, code=75)
    assert ended == 75
    assert calls[1][:3] == ["scontrol", "requeue", "17"]


@pytest.mark.parametrize(
    ("code", "restarts", "fields", "again"),
    [
        (75, 0, {}, True),
        (75, 99, {}, True),
        (75, 100, {}, False),
        (75, 3, {"max_restarts": 3}, False),
        (75, 0, {"max_restarts": 0}, False),
        (0, 0, {}, False),
        (1, 0, {}, False),
        (143, 0, {}, False),
        (1, 2, {"restart_failures": True}, True),
        (0, 2, {"restart_failures": True}, False),
        (1, 3, {"restart_failures": True, "max_restarts": 3}, False),
    ],
)
def test_the_job_is_queued_again_after_75(
    code: int, restarts: int, fields: dict[str, Any], again: bool, tmp_path: Path
) -> None:
    ended, calls = ran(script(**fields), tmp_path, code=code, restarts=restarts)
    assert ended == code
    assert [call[:3] for call in calls[1:]] == ([["scontrol", "requeue", "17"]] if again else [])
    assert calls[0][-1]["TFDIST_ATTEMPT"] == str(restarts)


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"name": "a b"}, {}, "expected --name of at most 100 characters for Slurm, .* received 'a b'"),
        ({"name": "a\n#SBATCH --uid=0"}, {}, "expected --name"),
        ({}, {"partition": "a b"}, "expected --partition to be one word without quotes, received 'a b'"),
        ({}, {"account": "a\nb"}, "expected --account to be one word"),
        ({"seconds": 60}, {}, "expected --time above the 60 s of --grace-seconds, received 60 s"),
    ],
)
def test_what_slurm_does_not_allow_is_refused(fields: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        script(options=options, **fields)
