"""Runs every cell of the conformance table on stock Keras and with tfdist, and writes docs/conformance.md."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

from tests.conformance.case import TABLE_GROUPS, TOPOLOGIES, Topology, table_cases
from tests.conformance.outcomes import Cell, Leg, running
from tests.conformance.table import Measured, document
from tests.processes import ROOT

LEGACY = (("TF_USE_LEGACY_KERAS", "1"),)
VERSIONS = """
import importlib, platform, tensorflow as tf
keras = "Keras " + importlib.import_module(tf.keras.Model.__module__.split(".")[0]).__version__
print("VERSIONS", keras, f"TensorFlow {tf.__version__}", f"Python {platform.python_version()}", sep="|")
"""


@functools.cache
def versions(leg: Leg) -> str:
    """Returns the versions of a leg, such as "Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.7"."""
    ended = subprocess.run(
        [leg.python, "-c", VERSIONS], env=leg.variables(), capture_output=True, text=True, timeout=120, check=True
    )
    line = next(line for line in ended.stdout.splitlines() if line.startswith("VERSIONS"))
    keras, *others = line.split("|")[1:]
    keras = keras.replace("Keras", "tf_keras") if leg.name == "tf_keras" else keras
    return f"{keras}, {', '.join(others)}"


def fingerprint(leg: Leg, flavour: str, group: str) -> str:
    """Returns a hash of the versions and the code of a group's cells. Results with this fingerprint are used again.

    Stock cells do not depend on the code of tfdist.
    """
    digest = hashlib.sha256(versions(leg).encode())
    conformance = ROOT / "tests" / "conformance"
    written_by = {"__main__.py", "table.py", "test_conformance.py"}
    files = [path for path in conformance.glob("*.py") if path.name not in written_by]
    files.append(conformance / "cases" / f"{group}.py")
    if flavour == "tfdist":
        files += (ROOT / "tfdist").rglob("*.py")
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def measure(leg: Leg, folder: Path) -> Measured:
    """Returns all cells of a leg, after running those whose results are not in the folder yet."""
    cells: dict[tuple[str, str, str], Cell] = {}
    cases = list(table_cases().values())
    for flavour in ("stock", "tfdist"):
        found = {group: folder / fingerprint(leg, flavour, group) for group in TABLE_GROUPS}
        for path in found.values():
            path.mkdir(parents=True, exist_ok=True)

        def path_of(topology: Topology, group: str, found: dict[str, Path] = found, flavour: str = flavour) -> Path:
            return found[group] / f"{flavour} {topology.name} {group}.json"

        missing = {
            topology: [case for case in cases if not path_of(topology, case.group).exists()] for topology in TOPOLOGIES
        }
        with running(leg, flavour, {topology: wanted for topology, wanted in missing.items() if wanted}) as futures:
            for topology in TOPOLOGIES:
                new = futures[topology].result() if topology in futures else {}
                for group in {case.group for case in missing[topology]}:
                    values = {case.name: dataclasses.asdict(new[case.name]) for case in cases if case.group == group}
                    path_of(topology, group).write_text(json.dumps(values))
                for group in TABLE_GROUPS:
                    for name, values in json.loads(path_of(topology, group).read_text()).items():
                        cells[flavour, topology.name, name] = Cell(**values)
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
