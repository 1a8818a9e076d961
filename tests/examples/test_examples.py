"""Each example runs as its docstring says, and prints a good result on one task only.

CI runs the last command of some docstrings, which starts several tasks if the example can; tests/full runs all.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import ROOT, Finished, finish, launch, run, start

FOLDER = ROOT / "examples"
PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py"))
DEADLINE_SECONDS = 240.0

# For each program, the line that it prints, and a check of the numbers in this line.
RESULTS: dict[str, tuple[str, Callable[..., bool]]] = {
    "auto_resume.py": (
        r"accuracy (\S+) after 10 epochs, checksum of the weights (\w{8})",
        lambda a, _: float(a) > 0.85,
    ),
    "compression.py": (
        r"accuracy (\S+); 176 steps sent (\S+) MB instead of (\S+) MB: (\S+) times fewer",
        lambda a, sent, plain, ratio: a > 0.87 and plain == 13.52 and 12 < ratio < 14 and sent < 1.1,
    ),
    "custom_loop.py": (r"accuracy (\S+) of 397 rows", lambda a: a > 0.86),
    "custom_train_step.py": (r"accuracy (\S+), reconstruction (\S+)", lambda a, r: a > 0.85 and r < 0.03),
    "files.py": (r"accuracy (\S+), loss (\S+)", lambda a, loss: a > 0.88 and loss < 0.4),
    "gan.py": (
        r"distance of the mean image (\S+) before training, (\S+) after",
        lambda before, after: before > 4 and after < 3,
    ),
    "lamb_recipe.py": (r"accuracy (\S+), loss (\S+) after 96 steps", lambda a, loss: a > 0.88 and loss < 0.6),
    "lookup_layers.py": (
        r"explained variance (\S+), mean squared error (\S+) cm2",
        lambda explained, error: explained > 0.9 and error < 0.05,
    ),
    "mixed_precision.py": (
        r"accuracy (\S+), float16 with float32 variables, LossScaleOptimizer\w*",
        lambda a: a > 0.86,
    ),
    "own_flags.py": (r"accuracy (\S+) with 64 hidden units on 2 replicas", lambda a: a > 0.78),
    "own_model.py": (r"accuracy (\S+), loss (\S+)", lambda a, loss: a > 0.88 and loss < 0.4),
    "parameter_servers.py": (r"accuracy (\S+) after 176 steps of any worker", lambda a: a > 0.85),
    "sample_weights.py": (
        r"no weights: accuracy (\S+), of eights (\S+); sample_weight: accuracy (\S+), of eights (\S+); "
        r"class_weight: accuracy (\S+), of eights (\S+)",
        lambda a0, _, a1, eights1, a2, eights2: a0 < 0.4 and a1 > 0.75 and a2 > 0.8 and eights2 > eights1 + 0.1,
    ),
    "sidecar_evaluation.py": (r"best accuracy (\S+) in sidecar/epoch-\d.keras", lambda a: a > 0.86),
    "sync_batch_norm.py": (
        r"accuracy (\S+), loss (\S+), mean of the moving variance (\S+)",
        lambda a, loss, variance: a > 0.88 and loss < 0.4 and abs(variance - 0.033) < 0.002,
    ),
    "text_masking.py": (
        r"accuracy (\S+), of the most frequent package (\S+), \d+ docstrings",
        lambda a, most: a > 0.75 and most < 0.5,
    ),
    "tf_data.py": (r"accuracy (\S+), loss (\S+)", lambda a, loss: a > 0.9 and loss < 0.3),
}


def commands(program: str) -> list[str]:
    """Returns the command lines in the docstring of a program."""
    docstring = ast.get_docstring(ast.parse((FOLDER / program).read_text())) or ""
    return [line.strip() for line in docstring.splitlines() if line.startswith("    ")]


ALL = [(program, command) for program in PROGRAMS for command in commands(program)]
# Other tests train with these features in the same way.
IN_FULL = (
    "auto_resume.py",
    "compression.py",
    "custom_loop.py",
    "custom_train_step.py",
    "files.py",
    "gan.py",
    "lamb_recipe.py",
    "lookup_layers.py",
    "mixed_precision.py",
    "own_flags.py",
    "own_model.py",
    "sample_weights.py",
    "sidecar_evaluation.py",
    "sync_batch_norm.py",
    "text_masking.py",
    "tf_data.py",
)
MARKED = [
    pytest.param(
        program,
        command,
        marks=() if command == commands(program)[-1] and program not in IN_FULL else pytest.mark.full,
        id=command,
    )
    for program, command in ALL
]


def arguments(command: str) -> list[str]:
    """Returns the words after `python` or `tfdist launch`."""
    words = shlex.split(command)
    assert words[:1] == ["python"] or words[:2] == ["tfdist", "launch"]
    return words[1:] if words[0] == "python" else words[2:]


def run_command(command: str, *, cwd: Path) -> Finished:
    if command.startswith("python"):
        return run([sys.executable, *arguments(command)], cwd=cwd, deadline_seconds=DEADLINE_SECONDS)
    return launch(*arguments(command), cwd=cwd, deadline_seconds=DEADLINE_SECONDS)


def result_of(program: str, finished: Finished) -> list[str]:
    """Checks the line that a program has printed, and returns its numbers."""
    pattern, is_good = RESULTS[program]
    assert finished.code == 0
    found = re.findall(rf"^(?:\[\w+ \d+\] )?({pattern})$", finished.text, re.M)
    assert len(found) == 1, f"expected one line {pattern!r}, received {len(found)}"
    line, *numbers = found[0]
    assert is_good(*(numbers if program == "auto_resume.py" else map(float, numbers))), line
    return numbers


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Returns a function that makes folders in which the relative path of an example is that of the checkout."""

    def make() -> Path:
        folder = tmp_path_factory.mktemp("folder")
        (folder / "examples").symlink_to(FOLDER)
        return folder

    return make


@pytest.fixture(scope="module")
def result(make_folder: Callable[[], Path]) -> Callable[[str, str], list[str]]:
    """Returns a function that runs a command once, and returns the numbers of its result."""
    return functools.cache(lambda program, command: result_of(program, run_command(command, cwd=make_folder())))


@pytest.mark.parametrize(("program", "command"), MARKED)
def test_an_example_runs_as_its_docstring_says(program: str, command: str, result: Callable) -> None:
    result(program, command)


@pytest.mark.full
def test_an_interrupted_training_ends_as_an_uninterrupted_one(make_folder: Callable, result: Callable) -> None:
    program, command = "auto_resume.py", commands("auto_resume.py")[0]
    folder = make_folder()
    process = start([sys.executable, *arguments(command)], cwd=folder)
    deadline = time.monotonic() + DEADLINE_SECONDS
    # The second snapshot is of step 40, in the first of 10 epochs, which have 44 steps.
    while len(list((folder / "auto-resume").glob("snapshot-*"))) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    assert finish(process, deadline_seconds=60).code == -signal.SIGKILL

    finished = run_command(command, cwd=folder)
    assert "goes on" in finished.text
    assert result_of(program, finished) == result(program, command)


@pytest.mark.parametrize("program", ["sync_batch_norm.py", pytest.param("own_model.py", marks=pytest.mark.full)])
def test_two_workers_print_the_result_of_one_device(program: str, result: Callable) -> None:
    alone, both = (list(map(float, result(program, command))) for command in commands(program))
    assert alone == pytest.approx(both, abs=2e-3)


def test_every_example_has_a_result_and_a_command() -> None:
    assert sorted(RESULTS) == PROGRAMS
    for program in PROGRAMS:
        assert commands(program), f"expected a command line in the docstring of {program}"
        for command in commands(program):
            assert f"examples/{program}" in shlex.split(command)


def test_the_table_has_the_commands_of_the_docstrings() -> None:
    rows = re.findall(r"^\| \[(\w+\.py)\]\((\w+\.py)\) \| .* \| (.*) \|$", (FOLDER / "README.md").read_text(), re.M)
    assert {name: cell.split("<br>") for name, _, cell in rows} == {
        program: [f"`{command}`" for command in commands(program)] for program in PROGRAMS
    }
    assert all(name == link for name, link, _ in rows)


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_example_is_short_and_uses_public_names_only(program: str) -> None:
    import tfdist

    text = (FOLDER / program).read_text()
    assert 30 <= len(text.splitlines()) <= 95
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tfdist"):
            package = node.module.removeprefix("tfdist").lstrip(".")
            assert "." not in package, f"expected a package of tfdist, received {node.module}"
            room = getattr(tfdist, package) if package else tfdist
            assert {alias.name for alias in node.names} <= set(room.__all__)
