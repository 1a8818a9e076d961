"""The files of the notebooks: pairs that agree, outputs that were asserted, badges, and install cells."""

from __future__ import annotations

import json
import re
import tomllib

import jupytext
import pytest

from tests import followed
from tests.notebooks.execution import FOLDER, NAMES, Shown, from_file
from tests.notebooks.results import RESULTS
from tests.processes import ROOT

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
# The folders of a machine, and not the devices that a refusal names.
_PATH = re.compile(r"(?<![\w:/.])/(?!dev/)\w[\w.-]*/[\w.-]+")


def cells(name: str, kind: str) -> list[str]:
    return [cell.source for cell in from_file(name).cells if cell.cell_type == kind]


def test_every_notebook_is_a_pair_in_the_table_with_a_checked_result() -> None:
    assert NAMES
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES) == set(RESULTS)
    table = re.findall(r"^\| \[(\w+)\]\((\w+)\.ipynb\) \|", (FOLDER / "README.md").read_text(), re.M)
    assert table == [(name, name) for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_the_script_and_the_notebook_of_a_pair_agree(name: str) -> None:
    script = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
    expected = [(cell.cell_type, cell.source) for cell in script.cells]
    received = [(cell.cell_type, cell.source) for cell in from_file(name).cells]
    assert received == expected, f"run `python -m tests.notebooks {name}`"


@pytest.mark.parametrize("name", NAMES)
def test_the_outputs_in_the_file_are_those_of_a_complete_run(name: str) -> None:
    notebook = from_file(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    RESULTS[name](Shown.by(notebook))


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_small_and_hold_no_errors_and_no_paths_of_a_machine(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    outputs = [output for cell in from_file(name).cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    # rich displays an empty frame beside a table that a program makes into text.
    assert all("image/png" in output.data for output in outputs if output.output_type == "display_data")
    texts = [json.dumps({**output, "data": {**output.get("data", {}), "image/png": ""}}) for output in outputs]
    assert not [found for text in texts for found in _PATH.findall(text)]


def test_a_path_of_a_machine_would_be_found() -> None:
    assert _PATH.findall("logs in /home/me/x, /tmp/ipykernel_1/2.py") == ["/home/me", "/tmp/ipykernel_1"]
    assert not _PATH.findall("see https://a.b/c/d, ./a/b, tfdist-logs/1/2 and /dev/vfio/0")


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_its_title_badge_and_installation(name: str) -> None:
    title, *_ = cells(name, "markdown")
    address = REPOSITORY.replace("https://github.com/", "https://colab.research.google.com/github/")
    assert title.startswith("# ")
    assert f"{BADGE}({address}/blob/main/notebooks/{name}.ipynb)" in title
    assert cells(name, "code")[0] == (
        "try:\n    import tfdist\nexcept ImportError:\n"
        "    from importlib.util import find_spec\n\n"
        "    # Colab has a TensorFlow, over which no other one is installed.\n"
        '    extras = "notebooks" if find_spec("tensorflow") else "cpu,notebooks"\n'
        f'    %pip install --quiet "tfdist[{{extras}}] @ git+{REPOSITORY}"\n    import tfdist'
    )


def test_the_address_of_the_repository_is_that_of_the_documents() -> None:
    assert followed.REPOSITORY == REPOSITORY
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *FOLDER.glob("*.md")]:
        for address in re.findall(r"https://github\.com/[\w-]+/tfdist\b", document.read_text()):
            assert address == REPOSITORY, document.name
