"""Bash completes tfdist commands with the script of `tfdist completion bash`, which starts no Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags

from tfdist._cli import COMMANDS
from tfdist.bench import BENCHMARKS
from tfdist.completion import SHELLS, main, script
from tfdist.flags import define_flags
from tfdist.launch import args
from tfdist.render import SCHEDULERS

# Completes a line as readline does: bash splits it at blanks and at `=`, and calls the function with the words.
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p tfdist | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
python() { echo "Python was started" >&2; }
$function
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    place = tmp_path_factory.mktemp("completion")
    (place / "tfdist.bash").write_text(script("bash"))
    (place / "train.py").touch()

    def complete(*words):
        done = subprocess.run(
            ["bash", "--norc", "-c", COMPLETE, "bash", str(place / "tfdist.bash"), *words],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=30,
            env={"PATH": "/usr/bin:/bin"},
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_commands_are_completed(bash):
    assert sorted(bash("tfdist", "")) == sorted(COMMANDS)
    assert bash("tfdist", "la") == ["launch"]
    assert sorted(bash("tfdist", "bench", "")) == sorted(BENCHMARKS)


def test_options_of_every_command_are_completed(bash):
    assert bash("tfdist", "launch", "--worke") == ["--workers"]
    assert set(args._OPTIONS) <= set(bash("tfdist", "launch", "--"))
    assert bash("tfdist", "doctor", "--dir") == ["--directory"]
    assert bash("tfdist", "verify", "--rep") == ["--replicas"]
    assert bash("tfdist", "bench", "optimizer", "--mo") == ["--model"]
    assert sorted(bash("tfdist", "render", "")) == sorted(SCHEDULERS)
    assert bash("tfdist", "render", "jobset", "--ima") == ["--image"]
    assert "--tasks-per-node" not in bash("tfdist", "render", "jobset", "--")


def test_flags_of_the_training_program_are_completed(bash):
    values = flags.FlagValues()
    define_flags(flag_values=values)
    completed = bash("tfdist", "train", "--")
    assert {f"--{name}" for name in values} <= set(completed)
    assert "--nosync_batch_norm" in completed


@pytest.mark.parametrize("words", [["--strategy", "mir"], ["--strategy", "=", "mir"]], ids=["blank", "equals"])
def test_values_of_a_flag_are_completed(words, bash):
    assert bash("tfdist", "train", "--epochs", "=", "3", *words) == ["mirrored"]


def test_all_values_are_listed_after_the_equals_sign(bash):
    assert sorted(bash("tfdist", "train", "--resume", "=")) == ["auto", "never", "require"]
    assert bash("tfdist", "launch", "--show", "a") == ["all"]


def test_files_are_completed_where_the_program_stands(bash):
    assert bash("tfdist", "launch", "--workers", "2", "tra") == ["train.py"]


@pytest.mark.parametrize("shell", SHELLS)
def test_there_is_a_script_for_each_shell(shell, capsys):
    assert main([shell]) == 0
    printed = capsys.readouterr().out
    assert "global_batch_size" in printed
    assert "threads-per-rank" in printed


def test_the_script_is_written_without_tensorflow():
    program = (
        "import sys; from tfdist._cli import main; main(['completion', 'bash']); "
        "print({'tensorflow', 'keras'} & set(sys.modules), file=sys.stderr)"
    )
    root = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=root, check=True
    )
    assert done.stderr == "set()\n"
    assert done.stdout == script("bash")
