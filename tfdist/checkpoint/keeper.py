"""Keeper: takes the snapshots of one training at their pace, and ends the training when it is preempted.

The callback AutoResume and the loop ResumableLoop have the same options and the same life, which are both here.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path

import tensorflow as tf

from tfdist._log import get_logger
from tfdist._version import __version__
from tfdist.checkpoint.fits import directory_of_fit, fit_has_begun, fit_has_ended
from tfdist.checkpoint.pace import Pace
from tfdist.checkpoint.part import Part
from tfdist.checkpoint.preemption import Preemption
from tfdist.checkpoint.snapshots import Snapshots
from tfdist.cluster.launched import launched
from tfdist.cluster.progress import ProgressFile
from tfdist.keras_compat.version import keras_in_use


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options of AutoResume, which describes them."""

    every_steps: int | None
    every_seconds: float | None
    overhead: float
    memory: bool
    keep: int
    preemption_seconds: float
    preemption_signals: tuple[str, ...]

    def pace(self) -> Pace:
        """Returns a new Pace."""
        return Pace(every_steps=self.every_steps, every_seconds=self.every_seconds, overhead=self.overhead)


class Keeper:
    """Keeps the snapshots of a training.

    Args:
        directory: directory of the snapshots of the program.
        options: how to keep them.

    Raises:
        ValueError: if an option has no meaning, or for the address of an object store.
    """

    def __init__(self, directory: str, options: Options) -> None:
        self.pace = options.pace()
        if options.keep < 1:
            raise ValueError(f"expected keep to be at least 1, received {options.keep}.")
        if "://" in os.fspath(directory):
            raise ValueError(
                f"expected a directory of a file system for snapshots, received {os.fspath(directory)!r}; mount the "
                "store on all hosts, and give the path of the mount."
            )
        self._root, self._options = directory, options
        self._preemption = Preemption(options.preemption_signals, seconds=options.preemption_seconds)
        found = launched()
        path = found.progress_file if found is not None else None
        self._progress = _progress_file(path) if path is not None else None

    @property
    def directory(self) -> str:
        """Directory of the snapshots of the training that begins next, or that has begun."""
        return directory_of_fit(self._root)

    def begin(self, strategy: tf.distribute.Strategy, *, model: str) -> Part | None:
        """Returns the part from which the training goes on, or None; all workers call the method.

        Args:
            strategy: strategy of the training.
            model: fingerprint of the model.

        Raises:
            ValueError: if the snapshots are of another model, or if another training uses the directory.
            OSError: if another worker has failed.
        """
        self.pace = self._options.pace()
        self._replicas = strategy.num_replicas_in_sync
        self._snapshots = Snapshots(
            self.directory,
            strategy,
            model=model,
            made_by=versions(),
            keep=self._options.keep,
            memory=self._options.memory,
            pace=self.pace,
        )
        fit_has_begun(self._root, self._snapshots)
        self._preemption.watch(strategy, flush=self._snapshots.flush)
        part = self._snapshots.newest()
        if part is not None:
            self.pace.begin(part.step)
        return part

    def say_that_it_begins(self) -> None:
        """Writes to the log that there is no snapshot."""
        get_logger().info("no snapshot in %s: the training begins", self.directory)

    def say_what_goes_on(self, part: Part, *, is_finished: bool, where: str) -> None:
        """Writes to the log from which snapshot the training goes on.

        Args:
            part: the part.
            is_finished: whether the training has ended with it.
            where: its position in the data.
        """
        what = "the training is finished: restored" if is_finished else "the training goes on"
        get_logger().info("%s from the snapshot of step %d (%s) in %s", what, part.step, where, self.directory)
        if part.notes["replicas"] != self._replicas:
            get_logger().warning(
                "the snapshot is of %d replicas, and the training goes on with %d",
                part.notes["replicas"],
                self._replicas,
            )

    def prepare(self, part: Part) -> None:
        """Allocates memory for snapshots, in a thread; called after the first step.

        Args:
            part: a part of the size that later parts have.
        """
        self._snapshots.prepare(part)

    def keep(self, part: Part) -> None:
        """Keeps a part.

        Args:
            part: the part.
        """
        self._snapshots.keep(part)

    def record(self, step: int) -> None:
        """Says to the launcher how many steps are complete.

        Args:
            step: number of steps since the beginning of the training.
        """
        if self._progress is not None:
            self._progress.record(step)

    def must_leave(self) -> bool:
        """Counts a batch, and returns whether the training has to end after it; may wait for other workers."""
        return self._preemption.is_now()

    def leave(self, part: Part) -> None:
        """Writes a part to the disk and ends the process.

        Args:
            part: the part.

        Raises:
            SystemExit: always, with code 75.
        """
        is_written = self._snapshots.keep(part, on_disk=True)
        self._snapshots.close()
        what = f"the snapshot of step {part.step}" if is_written else "no snapshot of the last steps"
        self._preemption.leave(f"{what} is in {self.directory}")

    def finish(self, part: Part | None) -> None:
        """Ends the training, and the process if it is preempted.

        Args:
            part: the part to write to the disk; None if the training had ended with the part that was restored.
        """
        if part is not None:
            self._snapshots.keep(part, on_disk=True)
        else:
            # The part may have been in memory only, and is then being written.
            self._snapshots.settle()
        self._snapshots.close()
        directory = self.directory
        fit_has_ended(self._root)
        self._preemption.stop_watching()
        if self._preemption.is_requested:
            self._preemption.leave(f"the training is finished, and its snapshot is in {directory}")


def _progress_file(path: Path) -> ProgressFile | None:
    try:
        return ProgressFile(path)
    except OSError as error:
        get_logger().warning("the launcher does not learn of the steps: %s", error)
        return None


def versions() -> dict[str, str]:
    """Returns the versions of what makes a snapshot, by name."""
    return {
        "tfdist": __version__,
        "tensorflow": tf.__version__,
        keras_in_use().name: keras_in_use().version,
        "python": platform.python_version(),
    }
