"""A strategy trains, evaluates and predicts what one device does on the same global batches.

The oracle is stock Keras on one device, in a process without tfdist. The tests of the first function are the cells of
docs/conformance.md.
"""

from __future__ import annotations

import pytest

from tests.conformance.case import (
    COMPRESSIONS,
    TOPOLOGIES,
    UNORDERED,
    Case,
    Topology,
    all_cases,
    distributed_cases,
    float32_cases,
    is_core,
    is_distributed_core,
)
from tests.conformance.conftest import check
from tests.processes import ROOT

CASES = all_cases()
# The topologies that take longest run first, so that no long topology runs alone at the end.
ORDER = sorted((*TOPOLOGIES, UNORDERED), key=lambda topology: -topology.workers * topology.devices)
CELLS = [
    pytest.param(
        topology, case, id=f"{topology.name}-{case.name}", marks=() if is_core(topology, case) else pytest.mark.full
    )
    for topology in ORDER
    for case in [*CASES.values(), *float32_cases().values()]
    if not case.applies(topology)
]
DISTRIBUTED_CELLS = [
    pytest.param(
        topology,
        case,
        id=f"{topology.name}-{case.name}",
        marks=() if is_distributed_core(topology, case) else pytest.mark.full,
    )
    for topology in ORDER
    for case in distributed_cases().values()
    if case.name.rpartition("-")[2] in COMPRESSIONS.get(topology.name, ()) and not case.applies(topology)
]


@pytest.mark.parametrize(("topology", "case"), CELLS)
def test_gives_the_numbers_of_one_device(topology: Topology, case: Case, cells: dict) -> None:
    check(cells[topology].result()[case.name], topology, case)


@pytest.mark.parametrize(("topology", "case"), DISTRIBUTED_CELLS)
def test_distributed_optimizer_makes_the_steps_of_one_device(topology: Topology, case: Case, cells: dict) -> None:
    check(cells[topology].result()[case.name], topology, case)


def test_every_unusual_tolerance_and_every_exception_has_a_reason() -> None:
    for case in CASES.values():
        assert bool(case.why) == (case.tolerance != 1e-5), case.name
        assert all(case.not_on.values()), case.name


@pytest.fixture
def tables() -> list[list[list[str]]]:
    """Returns the tables of the document as lists of rows of cells. The first row is the heading."""
    text = (ROOT / "docs" / "conformance.md").read_text()
    found = [("| " + part.split("\n\n")[0]).splitlines() for part in text.split("\n| | ")[1:]]
    return [[line.strip("| ").split(" | ") for line in lines] for lines in found]


def test_the_document_lists_these_cells(tables: list[list[list[str]]]) -> None:
    assert len(tables) >= 2
    for heading, _, *rows in tables:
        assert heading == [topology.name for topology in TOPOLOGIES]
        assert [row[0] for row in rows if len(row) > 1] == [case.title for case in all_cases().values()]


def test_in_the_document_no_cell_fails_with_tfdist(tables: list[list[list[str]]]) -> None:
    for _, _, *rows in tables:
        for row in rows:
            assert {cell.split(" → ")[-1] for cell in row[1:]} <= {"pass", "refuses", "n/a"}, row
