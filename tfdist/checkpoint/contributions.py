"""Collects the parts of a snapshot that several workers write, through files in the directory of the snapshots.

A worker writes its part and then a note with its size and checksum. The chief waits for the notes and moves the parts
into the snapshot. This file is independent of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from tfdist.checkpoint.manifest import StoredPart
from tfdist.checkpoint.synced import write_synced

_FOLDER = ".parts"
_POLL_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class Contributions:
    """The parts that workers other than the chief write for the snapshots of a run.

    Attributes:
        directory: directory of the snapshots, which all workers share.
        run: a number that all workers of this run have agreed on, and that no other run has.
    """

    directory: Path
    run: int

    def begin(self) -> None:
        """Removes what other runs have left; called by the chief before any worker writes a part."""
        shutil.rmtree(self.directory / _FOLDER, ignore_errors=True)

    def give(self, step: int, name: str, data: memoryview) -> None:
        """Writes a part for the chief.

        Args:
            step: step of the snapshot.
            name: name of the part.
            data: bytes of the part.

        Raises:
            OSError: if the disk is full, for example.
        """
        folder = self._folder(step)
        folder.mkdir(parents=True, exist_ok=True)
        stored = write_synced(folder / name, data)
        note = folder / f".{name}.json"
        note.write_text(json.dumps(dataclasses.asdict(stored)))
        os.replace(note, folder / f"{name}.json")

    def take(self, step: int, names: Iterable[str], target: Path, *, deadline_seconds: float) -> dict[str, StoredPart]:
        """Waits for parts and moves them to a folder; called by the chief.

        Args:
            step: step of the snapshot.
            names: names of the parts.
            target: the folder.
            deadline_seconds: longest time to wait for all parts together.

        Returns:
            The size and checksum of each part, by name.

        Raises:
            OSError: if a part is missing at the deadline; the message names it.
        """
        folder, end = self._folder(step), time.monotonic() + deadline_seconds
        found = {}
        try:
            for name in names:
                note = folder / f"{name}.json"
                while not note.exists():
                    if time.monotonic() > end:
                        raise TimeoutError(
                            f"expected {name} to write its part of the snapshot of step {step} within "
                            f"{deadline_seconds:g} s, received none; check that all workers share {self.directory}."
                        )
                    time.sleep(_POLL_SECONDS)
                found[name] = StoredPart(**json.loads(note.read_text()))
                os.rename(folder / name, target / name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return found

    def _folder(self, step: int) -> Path:
        return self.directory / _FOLDER / f"{self.run}-{step}"
