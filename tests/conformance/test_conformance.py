"""What a strategy trains, evaluates and predicts is what one device does on the same global batches.

The oracle is stock Keras on one device, in a process without tfdist. Each test is a cell of docs/conformance.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.case import TOPOLOGIES, UNORDERED, Case, Topology, all_cases
from tests.conformance.outcomes import running, this_leg
from tests.processes import ROOT

CASES = all_cases()
# The longest first, so that none is left over at the end.
ORDER = sorted((*TOPOLOGIES, UNORDERED), key=lambda topology: -topology.workers * topology.devices)
CELLS = [(topology, case) for topology in ORDER for case in CASES.values() if not case.applies(topology)]


@pytest.fixture(scope="module")
def cells(request: pytest.FixtureRequest) -> Iterator[dict]:
    wanted: dict[Topology, list[Case]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.module is request.module and "case" in parameters:
            wanted.setdefault(parameters["topology"], []).append(parameters["case"])
    with running(this_leg(), "tfdist", wanted) as futures:
        yield futures


@pytest.mark.parametrize(("topology", "case"), CELLS, ids=[f"{topology.name}-{case.name}" for topology, case in CELLS])
def test_gives_the_numbers_of_one_device(topology: Topology, case: Case, cells: dict) -> None:
    cell = cells[topology].result()[case.name]
    print(cell.log)
    assert cell.word in ("pass", "n/a") or (cell.word == "refuses" and topology.strategy in case.refused_on), (
        f"{cell.word} {cell.size:.2g}: {cell.detail}"
    )


def test_every_reason_is_given() -> None:
    for case in CASES.values():
        assert bool(case.why) == (case.tolerance != 1e-5), case.name
        assert all(case.not_on.values()), case.name


@pytest.fixture
def tables() -> list[list[list[str]]]:
    """The cells of each row of each table of the document, the heading first."""
    text = (ROOT / "docs" / "conformance.md").read_text()
    found = [("| " + part.split("\n\n")[0]).splitlines() for part in text.split("\n| | ")[1:]]
    return [[line.strip("| ").split(" | ") for line in lines] for lines in found]


def test_the_document_lists_these_cells(tables: list[list[list[str]]]) -> None:
    assert len(tables) >= 2
    for heading, _, *rows in tables:
        assert heading == [topology.name for topology in TOPOLOGIES]
        assert [row[0] for row in rows if len(row) > 1] == [case.title for case in CASES.values()]


def test_in_the_document_no_cell_fails_with_tfdist(tables: list[list[list[str]]]) -> None:
    for _, _, *rows in tables:
        for row in rows:
            assert {cell.split(" → ")[-1] for cell in row[1:]} <= {"pass", "refuses", "n/a"}, row
