"""Executes a notebook in a new kernel and a folder, and reads what its cells show."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

from tests.conftest import SURROUNDINGS
from tests.processes import ROOT

FOLDER = ROOT / "notebooks"
NAMES = tuple(path.stem for path in sorted(FOLDER.glob("*.py")))
# A notebook takes at most 90 s alone; tests share two cores with others. Only a hang reaches this limit.
DEADLINE_SECONDS = 400.0


@dataclasses.dataclass(frozen=True)
class Shown:
    """What the cells of an executed notebook show.

    Args:
        text: texts of all outputs, without colours.
        plots: PNG images.
    """

    text: str
    plots: tuple[str, ...]

    @classmethod
    def by(cls, notebook: nbformat.NotebookNode) -> Shown:
        texts, plots = [], []
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                texts.append(output.get("text", "") + data.get("text/plain", ""))
                plots += [data["image/png"]] if "image/png" in data else []
        return cls(re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(texts)), tuple(plots))

    def numbers(self, pattern: str) -> list[float]:
        """Returns the numbers in the one place of the text that has a pattern."""
        found = re.findall(pattern, self.text, re.M)
        assert len(found) == 1, f"expected the output {pattern!r} once, received it {len(found)} times"
        return [float(number) for number in (found[0] if isinstance(found[0], tuple) else found)]


def from_script(name: str) -> nbformat.NotebookNode:
    """Returns the notebook that the .py file of a pair describes, without outputs."""
    notebook = jupytext.read(FOLDER / f"{name}.py", fmt="py:percent")
    for number, cell in enumerate(notebook.cells):
        # The same names each time, so that a diff shows only what has changed.
        cell["id"] = f"cell-{number}"
    return notebook


def from_file(name: str) -> nbformat.NotebookNode:
    """Returns the .ipynb file of a pair, with its outputs."""
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@contextmanager
def _environment(variables: dict[str, str], removed: tuple[str, ...]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    for name in removed:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def execute(
    notebook: nbformat.NotebookNode, folder: Path, *, deadline_seconds: float = DEADLINE_SECONDS
) -> nbformat.NotebookNode:
    """Executes all cells in a new kernel, whose working directory is the folder, and returns the notebook with outputs.

    Raises:
        CellExecutionError: if a cell raises an exception.
        CellTimeoutError: if the deadline is over. The kernel is killed, and with it the launcher and its tasks.
    """
    end = time.monotonic() + deadline_seconds
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        # nbclient takes 0 as no limit.
        timeout_func=lambda cell: max(1, round(end - time.monotonic())),
        startup_timeout=120,
        record_timing=False,
        # A progress bar is kept in its last state only.
        coalesce_streams=True,
    )
    # The configuration of IPython of this account is not that of a reader. The name python3 stands for this Python. The
    # notebooks are for Keras 3.
    variables = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / ".ipython")}
    with _environment(variables, (*SURROUNDINGS, "TF_USE_LEGACY_KERAS")):
        try:
            return client.execute()
        except Exception:
            # What the cells before have shown helps to find the cause.
            print(Shown.by(notebook).text)
            raise
