"""Keeps measured cells in files, from which the table is written: cells of tests/full or of the command."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.case import GROUPS, Topology, all_cases
from tests.conformance.outcomes import Cell, Leg
from tests.processes import ROOT

VERSIONS = """
import importlib, platform, tensorflow as tf
keras = "Keras " + importlib.import_module(tf.keras.Model.__module__.split(".")[0]).__version__
print("VERSIONS", keras, f"TensorFlow {tf.__version__}", f"Python {platform.python_version()}", sep="|")
"""
# Changes of these files change no result.
WITHOUT_CELLS = {"__main__.py", "conftest.py", "results.py", "table.py", "test_conformance.py"}


@functools.cache
def versions(leg: Leg) -> str:
    """Returns the versions of a leg, such as "Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.7"."""
    ended = subprocess.run(
        [leg.python, "-c", VERSIONS], env=leg.variables(), capture_output=True, text=True, timeout=120, check=True
    )
    line = next(line for line in ended.stdout.splitlines() if line.startswith("VERSIONS"))
    keras, *others = line.split("|")[1:]
    keras = keras.replace("Keras", "tf_keras") if leg.environment else keras
    return f"{keras}, {', '.join(others)}"


@functools.cache
def fingerprint(leg: Leg, flavour: str, group: str) -> str:
    """Returns a hash of the versions and the code of a group's cells. Results with this fingerprint are used again.

    Stock cells do not depend on the code of tfdist.
    """
    digest = hashlib.sha256(versions(leg).encode())
    conformance = ROOT / "tests" / "conformance"
    files = [path for path in conformance.glob("*.py") if path.name not in WITHOUT_CELLS]
    files.append(conformance / "cases" / f"{group}.py")
    if flavour == "tfdist":
        files += (ROOT / "tfdist").rglob("*.py")
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Results:
    """The measured cells of a leg in a folder, one file for each flavour, topology and group.

    Attributes:
        folder: the folder. Files of other versions of the code stay there and are not read.
        leg: the leg.
    """

    folder: Path
    leg: Leg

    def _path(self, flavour: str, topology: Topology, group: str) -> Path:
        return self.folder / fingerprint(self.leg, flavour, group) / f"{flavour} {topology.name} {group}.json"

    def has(self, flavour: str, topology: Topology, group: str) -> bool:
        """Returns whether the cells of a group have been measured on a topology."""
        return self._path(flavour, topology, group).exists()

    def read(self, flavour: str, topology: Topology, group: str) -> dict[str, Cell]:
        """Returns the cells of a group on a topology, by the name of the case."""
        text = self._path(flavour, topology, group).read_text()
        return {name: Cell(**values) for name, values in json.loads(text).items()}

    def keep(self, flavour: str, topology: Topology, measured: Mapping[str, Cell]) -> None:
        """Writes the cells of each group of the table of which every case has been measured.

        Args:
            flavour: "stock" or "tfdist".
            topology: the topology.
            measured: cells by the name of the case. Cases that do not apply may be missing.
        """
        for group in GROUPS:
            cells = {}
            for case in all_cases().values():
                reason = case.applies(topology)
                if case.group == group and (reason or case.name in measured):
                    cells[case.name] = Cell("n/a", detail=reason) if reason else measured[case.name]
            if set(cells) == {case.name for case in all_cases().values() if case.group == group}:
                path = self._path(flavour, topology, group)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({name: dataclasses.asdict(cell) for name, cell in cells.items()}))
