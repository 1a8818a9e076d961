"""Runs every cell of the conformance table on stock Keras and with tfdist, and writes docs/conformance.md."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tests.conformance.case import GROUPS, TOPOLOGIES, all_cases
from tests.conformance.outcomes import Cell, Leg, running
from tests.conformance.results import Results, versions
from tests.conformance.table import Measured, document

LEGACY = (("TF_USE_LEGACY_KERAS", "1"),)


def measure(leg: Leg, folder: Path) -> Measured:
    """Returns all cells of a leg, after running those whose results are not in the folder yet."""
    results = Results(folder, leg)
    cells: dict[tuple[str, str, str], Cell] = {}
    for flavour in ("stock", "tfdist"):
        missing = {
            topology: [case for case in all_cases().values() if not results.has(flavour, topology, case.group)]
            for topology in TOPOLOGIES
        }
        with running(leg, flavour, {topology: wanted for topology, wanted in missing.items() if wanted}) as futures:
            for topology in TOPOLOGIES:
                if topology in futures:
                    results.keep(flavour, topology, futures[topology].result())
                for group in GROUPS:
                    for name, cell in results.read(flavour, topology, group).items():
                        cells[flavour, topology.name, name] = cell
    return Measured(keras=versions(leg), cells=cells)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--addons-python", help="interpreter of an environment with the extra 'addons': adds Keras 2.15"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("build/conformance"),
        help="folder for the results, which a second call reads",
    )
    parser.add_argument("--write", type=Path, help="document to write; without this option it is printed")
    arguments = parser.parse_args()
    legs = [Leg("Keras 3", sys.executable), Leg("tf_keras", sys.executable, LEGACY)]
    # The document shows this command. It does not have the paths of this machine.
    command = ["python", "-m", "tests.conformance"]
    if arguments.addons_python:
        legs.append(Leg("Keras 2.15", arguments.addons_python))
        command += ["--addons-python", "addons/bin/python"]
    command += ["--write", "docs/conformance.md"]
    text = document(shlex.join(command), [measure(leg, arguments.results) for leg in legs])
    if arguments.write:
        arguments.write.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
