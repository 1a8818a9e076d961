"""DiskTier: writes snapshots to a directory, and reads the newest one whose files are complete.

A snapshot is a folder with a manifest and one file for each worker that has written a part. Its name consists of
`snapshot`, its step, and a number that tells snapshots of the same step from each other. The folder is written under a
hidden name and renamed when all of its files are on the disk, so that no snapshot is seen before it is complete. This
file is independent of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist._log import get_logger
from tfdist.checkpoint.manifest import (
    NAME,
    BrokenSnapshotError,
    Manifest,
    StoredPart,
    read_checked,
    read_manifest,
)
from tfdist.checkpoint.part import BrokenPartError, Part, read_part
from tfdist.checkpoint.synced import sync_folder, write_synced
from tfdist.saving.scratch_folder import remove_abandoned, scratch_folder

_NAME = re.compile(r"snapshot-(\d+)-(\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """A snapshot on disk whose manifest and sizes have been checked.

    Attributes:
        folder: its folder.
        manifest: its manifest.
    """

    folder: Path
    manifest: Manifest

    def part(self, name: str) -> Part:
        """Returns a part, after comparing its checksum.

        Args:
            name: name of the part, such as "worker-0".

        Raises:
            BrokenSnapshotError: if the file has changed since it was written.
        """
        try:
            return read_part(memoryview(read_checked(self.folder, self.manifest, name)))
        except BrokenPartError as error:
            raise BrokenSnapshotError(str(error)) from error


class DiskTier:
    """The snapshots in a directory.

    Args:
        directory: the directory; it is created.
        keep: number of complete snapshots to keep, at least 1.

    Raises:
        ValueError: if keep is less than 1.

    Example:
        >>> import numpy as np, tempfile
        >>> from tfdist.checkpoint.disk import DiskTier
        >>> from tfdist.checkpoint.part import Part, write_part
        >>> tier, buffer = DiskTier(tempfile.mkdtemp(), keep=2), memoryview(bytearray(1000))
        >>> size = write_part(Part(step=5, values={"weights": np.ones(2)}, notes={}), buffer)
        >>> _ = tier.write(5, {"worker-0": buffer[:size]}, model="ab12")
        >>> tier.newest(model="ab12").part("worker-0").values["weights"].tolist()
        [1.0, 1.0]
    """

    def __init__(self, directory: str | Path, *, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"expected keep to be at least 1, received {keep}.")
        self._directory, self._keep = Path(directory), keep
        # Snapshots of complete size that were found to be broken.
        self._broken: set[Path] = set()
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_abandoned(str(self._directory))

    def write(
        self,
        step: int,
        parts: Mapping[str, memoryview],
        *,
        model: str,
        finished: bool = False,
        made_by: Mapping[str, str] | None = None,
        take_others: Callable[[Path], Mapping[str, StoredPart]] | None = None,
    ) -> Path:
        """Writes a snapshot, removes the snapshots that are not kept, and returns the folder of the new one.

        Args:
            step: number of steps since the beginning of the run.
            parts: the bytes of each part, by name.
            model: fingerprint of what the parts contain.
            finished: whether the run ends with this snapshot.
            made_by: versions of what makes the snapshot, by name.
            take_others: moves the parts that other workers have written into a folder, and describes them.

        Raises:
            OSError: if the disk is full, for example. All earlier snapshots are kept.
        """
        same_step = [number for found, number in map(_numbers, self._folders()) if found == step]
        target = self._directory / f"snapshot-{step:010}-{max(same_step, default=-1) + 1}"
        with scratch_folder(str(self._directory)) as scratch:
            folder = Path(scratch)
            stored = {name: write_synced(folder / name, data) for name, data in parts.items()}
            if take_others is not None:
                stored.update(take_others(folder))
            manifest = Manifest(step=step, model=model, finished=finished, made_by=made_by or {}, parts=stored)
            write_synced(folder / NAME, manifest.to_json().encode())
            sync_folder(folder)
            os.rename(folder, target)
        sync_folder(self._directory)
        self._remove_old(step)
        return target

    def newest(self, *, model: str) -> Stored | None:
        """Returns the newest complete snapshot of a model; None if there is no snapshot.

        Snapshots that are torn or of another model are not used, and the log says why.

        Args:
            model: fingerprint of what the parts have to contain.

        Raises:
            ValueError: if all complete snapshots are of another model.
        """
        while True:
            folders = self._folders()
            stored = self._newest_of(folders, model)
            # A living writer may have removed some of them since, because it has written newer ones.
            if stored is not None or all(folder.exists() for folder in folders):
                return stored

    def _newest_of(self, folders: list[Path], model: str) -> Stored | None:
        others = 0
        for folder in folders:
            try:
                manifest = read_manifest(folder)
                if manifest.model != model:
                    others += 1
                    get_logger().warning("%s is not used: it is the snapshot of another model", folder)
                    continue
                for name in manifest.parts:
                    read_checked(folder, manifest, name)
                return Stored(folder=folder, manifest=manifest)
            except BrokenSnapshotError as error:
                if not folder.exists():
                    continue
                self._broken.add(folder)
                get_logger().warning("%s is not used: %s", folder, error)
        if others:
            raise ValueError(
                f"expected snapshots of this model in {str(self._directory)!r}, received those of another model; "
                "choose another directory, or remove them."
            )
        return None

    def forget(self) -> None:
        """Removes all snapshots."""
        self._remove(self._folders())

    def _folders(self) -> list[Path]:
        return folders_in(self._directory)

    def _remove_old(self, step: int) -> None:
        complete: list[Path] = []
        others: list[Path] = []
        for folder in self._folders():
            if _numbers(folder)[0] <= step:
                (complete if folder not in self._broken and _is_complete(folder) else others).append(folder)
        self._remove([*complete[self._keep :], *others])

    def _remove(self, folders: list[Path]) -> None:
        # Renamed first, so that no snapshot is seen without some of its files.
        for folder in folders:
            with scratch_folder(str(self._directory)) as scratch:
                os.rename(folder, os.path.join(scratch, folder.name))


def folders_in(directory: Path) -> list[Path]:
    """Returns the folders of the snapshots in a directory, the newest first, whether they are complete or not.

    Args:
        directory: the directory.

    Raises:
        OSError: if there is no such directory.
    """
    return sorted((path for path in directory.iterdir() if _NAME.fullmatch(path.name)), key=_numbers, reverse=True)


def _numbers(folder: Path) -> tuple[int, int]:
    """Returns the step of a snapshot, and its number among those of the same step."""
    found = _NAME.fullmatch(folder.name)
    assert found is not None
    return int(found[1]), int(found[2])


def _is_complete(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except BrokenSnapshotError:
        return False
    return True
