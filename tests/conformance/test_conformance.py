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


def test_the_document_lists_these_cells() -> None:
    text = (ROOT / "docs" / "conformance.md").read_text()
    tables = [part.split("\n\n")[0] for part in text.split("\n| | ")[1:]]
    assert len(tables) >= 2
    for table in tables:
        topologies, _, *rows = ("| " + table).splitlines()
        assert topologies == "| " + " | ".join(topology.name for topology in TOPOLOGIES) + " |"
        titles = [row.split(" | ")[0].removeprefix("| ") for row in rows if not row.startswith("| **")]
        assert titles == [case.title for case in CASES.values()]


def test_the_document_owns_up_to_no_wrong_number() -> None:
    """What a cell of the document becomes with tfdist is a pass, a refusal, or does not apply."""
    for line in (ROOT / "docs" / "conformance.md").read_text().splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == len(TOPOLOGIES) + 1 and not line.startswith(("| | ", "| --- ")):
            assert {cell.split(" → ")[-1] for cell in cells[1:]} <= {"pass", "refuses", "n/a"}, line
