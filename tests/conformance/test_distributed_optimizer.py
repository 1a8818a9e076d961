"""DistributedOptimizer makes the steps of one device in each row about gradients, without compression and with fp16."""

from __future__ import annotations

import pytest

from tests.conformance.case import TOPOLOGIES, Case, Topology, distributed_cases
from tests.conformance.conftest import check

# fp16 rounds in the same way within a process and across workers, so it is tested across workers, where it is useful.
COMPRESSIONS = {"MultiWorkerMirrored 2x1": ("none", "fp16"), "Mirrored 2": ("none",)}


def is_core(topology: Topology, case: Case) -> bool:
    """Returns whether CI runs a cell: uncompressed cells across workers, and the group gradient_rules."""
    return (case.name.endswith("-none") and topology.workers > 1) or case.group == "gradient_rules"


CELLS = [
    pytest.param(
        topology, case, id=f"{topology.name}-{case.name}", marks=() if is_core(topology, case) else pytest.mark.full
    )
    for topology in TOPOLOGIES
    for case in distributed_cases().values()
    if case.name.rpartition("-")[2] in COMPRESSIONS.get(topology.name, ()) and not case.applies(topology)
]


@pytest.mark.parametrize(("topology", "case"), CELLS)
def test_gives_the_numbers_of_one_device(topology: Topology, case: Case, cells: dict) -> None:
    check(cells[topology].result()[case.name], topology, case)
