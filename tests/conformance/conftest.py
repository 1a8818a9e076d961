from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.case import Case, Topology
from tests.conformance.outcomes import Cell, running, this_leg
from tests.conformance.results import Results

# tests/full keeps the cells that it measures in this folder, from which the table is written.
RESULTS = os.environ.get("TFDIST_CONFORMANCE_RESULTS")


@pytest.fixture(scope="module")
def cells(request: pytest.FixtureRequest) -> Iterator[dict]:
    """Starts all cells that the tests of this module need, and yields the future of each topology."""
    wanted: dict[Topology, list[Case]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.module is request.module and "case" in parameters:
            wanted.setdefault(parameters["topology"], []).append(parameters["case"])
    with running(this_leg(), "tfdist", wanted) as futures:
        yield futures
        for topology, future in futures.items():
            if RESULTS and future.done() and not future.exception():
                Results(Path(RESULTS), this_leg()).keep("tfdist", topology, future.result())


def check(cell: Cell, topology: Topology, case: Case) -> None:
    """Fails unless a cell has the numbers of one device, does not apply, or is refused on a strategy of refused_on."""
    print(cell.log)
    assert cell.word in ("pass", "n/a") or (cell.word == "refuses" and topology.strategy in case.refused_on), (
        f"{cell.word} {cell.size:.2g}: {cell.detail}"
    )
