"""The migration guides have the present programs and numbers, and name what exists."""

from __future__ import annotations

import doctest
import re
import types
from functools import reduce
from pathlib import Path

import pytest

from tests.migration import changes, pages, stock_cells
from tests.migration.stock_cells import with_tfdist

all_pages = pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)


@all_pages
def test_a_page_has_the_present_programs_and_numbers(path: Path) -> None:
    text = path.read_text()
    assert pages.written(path, text) == text, "python -m tests.migration writes the generated parts"


@pytest.mark.parametrize("keras", pages.KERASES)
def test_tfdist_has_the_numbers_of_one_device_in_every_row(keras: str) -> None:
    for titles, topologies in pages.TABLES:
        for title in titles:
            cells = pages.cells_of(keras, title, topologies)
            assert {with_tfdist(cell) for cell in cells} <= {"pass", "n/a"}, title


@pytest.mark.parametrize("module", [changes, pages, stock_cells], ids=lambda module: module.__name__)
def test_the_examples_of_the_generator_run(module: types.ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


@all_pages
def test_the_names_of_tfdist_exist(path: Path) -> None:
    import tfdist

    names = set(re.findall(r"\btfdist((?:\.[A-Za-z]\w*)+)", path.read_text()))
    assert names
    for name in names:
        reduce(getattr, name[1:].split("."), tfdist)


def test_the_names_of_keras_exist() -> None:
    keras = pytest.importorskip("keras", minversion="3", reason="the table is about Keras 3")
    text = (pages.ROOT / "docs" / "from_addons.md").read_text()
    names = set(re.findall(r"`keras((?:\.[A-Za-z]\w*)+)", text))
    # In a cell, later names belong to the module of the first one.
    for module, others in re.findall(r"`keras\.(\w+)\.\w+(?:\([^`]*\))?`((?:, `[A-Za-z]\w*`)+)", text):
        names |= {f".{module}.{other}" for other in re.findall(r"`(\w+)`", others)}
    assert len(names) > 20
    for name in names:
        reduce(getattr, name[1:].split("."), keras)
