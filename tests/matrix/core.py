"""Runs the core and the canaries with the Keras of this environment: python -m tests.matrix.core RESULT PROCESSES.

The program runs in the environment of a pair and writes its result as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from tests.conformance.case import TOPOLOGIES
from tests.conformance.outcomes import running, this_leg
from tests.conformance.results import versions
from tests.matrix import rows
from tests.processes import ROOT, run

CANARIES_SECONDS = 900.0


def cells(processes: int) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the cells of the core, by topology and case; runs so many clusters at a time."""
    wanted = [case for some in rows.cases().values() for case in some]
    topologies = [one for one in TOPOLOGIES if one.name in rows.TOPOLOGIES]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    with running(this_leg(), "tfdist", dict.fromkeys(topologies, wanted), clusters_at_a_time=processes) as futures:
        for topology, future in futures.items():
            found[topology.name] = {name: dataclasses.asdict(cell) for name, cell in future.result().items()}
    return found


def canaries(processes: int) -> dict[str, Any]:
    """Runs the canaries; returns how many passed, and the names of the others."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/canaries",
            "-q",
            "-n",
            str(processes),
            "-p",
            "no:cacheprovider",
        ]
        ended = run([*command, f"--junitxml={report}"], cwd=ROOT, deadline_seconds=CANARIES_SECONDS)
        if not report.exists():
            return {"passed": 0, "failed": [f"pytest ended with code {ended.code}"]}
        tests = list(ElementTree.parse(report).iter("testcase"))
    failed = [str(test.get("name")) for test in tests if len(test)]
    stock = [test for test in tests if str(test.get("name")).startswith("test_stock") and not len(test)]
    return {"passed": len(stock), "failed": failed}


def main() -> None:
    """Writes the result of this environment."""
    began, processes = time.monotonic(), int(sys.argv[2])
    measured = {"cells": cells(processes), "canaries": canaries(processes), "versions": versions(this_leg())}
    Path(sys.argv[1]).write_text(json.dumps({**measured, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
