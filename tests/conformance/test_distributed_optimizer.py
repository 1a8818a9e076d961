"""DistributedOptimizer makes the steps of one device: every row about gradients once more, with and without float16."""

from __future__ import annotations

import pytest

from tests.conformance.case import TOPOLOGIES, Case, Topology, distributed_cases
from tests.conformance.conftest import check

# What float16 does to a sum it does wherever the sum is made; across workers is where one uses it.
COMPRESSIONS = {"MultiWorkerMirrored 2x1": ("none", "fp16"), "Mirrored 2": ("none",)}
CELLS = [
    (topology, case)
    for topology in TOPOLOGIES
    for case in distributed_cases().values()
    if case.name.rpartition("-")[2] in COMPRESSIONS.get(topology.name, ()) and not case.applies(topology)
]


@pytest.mark.parametrize(("topology", "case"), CELLS, ids=[f"{topology.name}-{case.name}" for topology, case in CELLS])
def test_gives_the_numbers_of_one_device(topology: Topology, case: Case, cells: dict) -> None:
    check(cells[topology].result()[case.name], topology, case)
