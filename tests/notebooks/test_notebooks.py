"""Each notebook runs to its end in a new kernel and an empty folder, and shows the results that it should."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError

from tests.notebooks.execution import NAMES, Shown, execute, from_file
from tests.notebooks.results import RESULTS

# CI runs these; most of what the others show has tests of its own.
CORE = ("01_first_distributed_model",)


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in CORE else pytest.mark.full) for name in NAMES])
def test_a_notebook_runs_and_shows_its_results(name: str, tmp_path: Path) -> None:
    notebook = from_file(name)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    shown = Shown.by(execute(notebook, tmp_path))
    print(shown.text)
    RESULTS[name](shown)


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_a_cell_that_fails_fails_the_notebook(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="the numbers differ"):
        execute(notebook_of("one, two = 1, 2", "assert one == two, 'the numbers differ'"), tmp_path)


def test_a_cell_that_does_not_end_fails_the_notebook(tmp_path: Path) -> None:
    with pytest.raises(CellTimeoutError):
        execute(notebook_of("import time; time.sleep(600)"), tmp_path, deadline_seconds=2.0)


def test_the_text_and_the_plots_of_a_notebook_are_read(tmp_path: Path) -> None:
    source = "from IPython.display import Image\nprint('\\x1b[1mloss\\x1b[0m 0.25')\nImage(data=b'png', format='png')"
    shown = Shown.by(execute(notebook_of(source), tmp_path))
    assert shown.numbers(r"loss (\S+)") == [0.25]
    assert len(shown.plots) == 1
    with pytest.raises(AssertionError, match="expected the output 'accuracy' once, received it 0 times"):
        shown.numbers("accuracy")
