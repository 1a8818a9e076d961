"""Writes snapshots in a forked child as a training does: on disk, in memory, both, or with another worker's part."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos_faults import known
from tfdist.checkpoint.contributions import Contributions
from tfdist.checkpoint.disk import DiskTier
from tfdist.checkpoint.manifest import StoredPart
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.writer import BackgroundWriter

SETUPS = ("disk", "memory", "memory, and disk in a thread", "parts of two workers")
STEPS = 6
# The number that the two workers of a run have agreed on.
_RUN = 7


@dataclasses.dataclass(frozen=True)
class Place:
    """The folders of one run."""

    directory: Path
    root: Path

    @classmethod
    def within(cls, folder: Path) -> Place:
        """Makes the folders."""
        place = cls(folder / "snapshots", folder / "memory")
        place.directory.mkdir(parents=True)
        place.root.mkdir()
        return place


class Writer:
    """Writes snapshots as a training does, in the child.

    Args:
        place: the folders.
        setup: where it writes: one of SETUPS.
    """

    def __init__(self, place: Place, setup: str) -> None:
        self._place, self._by_two = place, setup.startswith("parts")
        self._disk = DiskTier(place.directory, keep=2) if setup != "memory" else None
        uses_memory = setup.startswith("memory")
        self._memory = MemoryTier(str(place.directory), worker=0, root=place.root) if uses_memory else None
        self._thread = BackgroundWriter()

    def write(self, steps: range, tell: Callable[[str], None]) -> None:
        """Writes the snapshots of some steps, and returns when all of them are written or have failed."""
        for step in steps:
            tell(f"begun:{step}")
            if self._memory is not None:
                try:
                    self._memory.write(known.part_of(step, 0))
                except OSError:
                    continue
                tell(f"kept:{step}")
            # As Snapshots does: the newest part in memory is written to the disk while later parts are kept.
            if self._disk is not None and not self._thread.is_busy:
                self._thread.start(self._job(self._disk, step, tell), to=f"write the snapshot of step {step}")
                if self._memory is None:
                    self._thread.wait()
        self._thread.wait()

    def close(self) -> None:
        """Ends the use of the memory."""
        if self._memory is not None:
            self._memory.close()

    def _job(self, disk: DiskTier, step: int, tell: Callable[[str], None]) -> Callable[[], None]:
        stack = contextlib.ExitStack()
        pinned = self._memory.pinned() if self._memory is not None else None
        data = stack.enter_context(pinned) if pinned is not None else known.bytes_of(known.part_of(step, 0))
        parts = {"worker-0": data}
        others = ["worker-1"] if self._by_two else []
        if not others:
            parts["worker-1"] = known.bytes_of(known.part_of(step, 1))

        def take(folder: Path) -> dict[str, StoredPart]:
            return Contributions(self._place.directory, _RUN).take(step, others, folder, deadline_seconds=0.5)

        def store() -> None:
            with stack:
                disk.write(step, parts, model=known.MODEL, take_others=take)
            tell(f"done:{step}")

        return store


def give_parts(place: Place, tell: Callable[[str], None]) -> None:
    """Writes the parts of another worker, in its child."""
    for step in range(1, STEPS + 1):
        Contributions(place.directory, _RUN).give(step, "worker-1", known.bytes_of(known.part_of(step, 1)))
    tell("given")
