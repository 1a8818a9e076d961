"""Every Python snippet of the documents runs, and every command line of the documents is accepted."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from absl import flags

from tests import mend_table, promise_table
from tests.conformance.case import all_cases
from tests.processes import ROOT, run
from tfdist.bench import main as bench
from tfdist.doctor.cli import parser as doctor_parser
from tfdist.env.cli import parser as env_parser
from tfdist.flags import define_flags
from tfdist.keras_compat.registry import MENDS
from tfdist.launch.args import parse, parse_scale
from tfdist.render import main as render
from tfdist.test.cli import parser as test_parser
from tfdist.train.cli import check_flags
from tfdist.verify.cli import parser as verify_parser
from tfdist.verify.cli import program_in

# tests/test_followed.py runs the tutorial, whose commands need the files and the environment of those before.
FOLLOWED = {ROOT / "docs" / "tutorial.md"}
DOCUMENTS = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - FOLLOWED)]


def _snippets(language: str) -> list[tuple[str, str]]:
    return [
        (f"{document.relative_to(ROOT)}:{number}", text)
        for document in DOCUMENTS
        for number, text in enumerate(re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.M | re.S), 1)
    ]


# Programs of schedulers, which start the command after their own options.
OF_OTHERS = ("mpirun", "mpiexec", "srun", "blaunch")

PYTHON = _snippets("python")
COMMANDS = [(f"{name} {line}", line) for name, text in _snippets("sh") for line in text.splitlines() if line]


@pytest.mark.parametrize("text", [text for _, text in PYTHON], ids=[name for name, _ in PYTHON])
def test_python_snippets_run(text: str, tmp_path: Path) -> None:
    if "import ray" in text:
        pytest.importorskip("ray.train", reason="the extra ray is not installed")
    (tmp_path / "snippet.py").write_text(text)
    assert run([sys.executable, "snippet.py"], cwd=tmp_path, deadline_seconds=120).code == 0


@pytest.mark.parametrize("line", [line for _, line in COMMANDS], ids=[name for name, _ in COMMANDS])
def test_command_lines_are_accepted(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.flags").write_text("--epochs=3\n")
    for command in line.split(" && "):
        words = shlex.split(command)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        if words[:3] == ["tfdist", "launch", "--scale-to"]:
            assert parse_scale(words[2:]) is not None
            continue
        if words[:2] == ["tfdist", "launch"]:
            words = list(parse(words[2:]).command)
            if words[:2] == ["-m", "tfdist.train"]:
                words = ["tfdist", "train", *words[2:]]
        if words[:2] == ["tfdist", "train"]:
            values = flags.FlagValues()
            define_flags(flag_values=values)
            assert values(words[1:])[1:] == []
            check_flags(values)
        elif words[:2] == ["tfdist", "bench"]:
            with pytest.raises(SystemExit) as ended:
                bench([*words[2:], "--help"])
            assert ended.value.code == 0
        elif words[:2] == ["tfdist", "doctor"]:
            doctor_parser().parse_args(words[2:])
        elif words[:2] == ["tfdist", "test"]:
            test_parser().parse_args(words[2:])
        elif words[:2] == ["tfdist", "env"]:
            env_parser().parse_args(words[2:])
        elif words[:2] == ["tfdist", "verify"]:
            split = words.index("--")
            verify_parser().parse_args(words[2:split])
            assert program_in(words[split + 1 :])[1]
        elif words[:2] == ["tfdist", "render"]:
            assert render(words[2:]) == 0
        elif words[0] == "pip":
            extra = re.search(r"\[(.*)\]", command)
            extras = extra[1].split(",") if extra else []
            assert all(f"\n{one} = [" in (ROOT / "pyproject.toml").read_text() for one in extras)
        else:
            assert words[0] in ("python", "-m", *OF_OTHERS), (
                f"expected a command that this test can check, received {command!r}"
            )


def test_the_table_of_mends_is_that_of_the_registry() -> None:
    text = (ROOT / "docs" / "keras.md").read_text()
    assert mend_table.written(text) == text


def test_every_mend_is_described_and_its_rows_are_rows_of_the_conformance_table() -> None:
    titles = {case.title for case in all_cases().values()}
    for mend in MENDS:
        assert mend.defect, mend.name
        assert set(mend.rows) <= titles, mend.name
        assert bool(mend.rows) != bool(mend.without_row), mend.name


def test_the_table_of_the_promise_is_that_of_the_conformance_table() -> None:
    text = (ROOT / "docs" / "promise.md").read_text()
    assert promise_table.written(text) == text
