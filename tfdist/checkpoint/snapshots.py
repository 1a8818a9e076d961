"""Snapshots: keeps the parts of one worker in memory and on disk, and finds those from which all workers go on."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.choice import choose
from tfdist.checkpoint.components import is_of_one_replica
from tfdist.checkpoint.contributions import Contributions
from tfdist.checkpoint.disk import DiskTier, Stored
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.part import Part, index_of, read_part, size_of_values, write_part
from tfdist.checkpoint.writer import BackgroundWriter
from tfdist.workers import agree, count_workers, exchange, worker_index

# A worker offers this many parts of its memory. Two are enough, since no worker is more than one snapshot ahead.
_OFFERS = 3
_PART_SECONDS = 60.0


class Snapshots:
    """The snapshots of a training, as one of its workers sees them. Every worker makes the same calls.

    Args:
        directory: directory of the snapshots, which all workers share.
        strategy: strategy of the training.
        model: fingerprint of the model.
        made_by: versions of what makes the snapshots, by name.
        keep: number of snapshots to keep on disk.
        memory: whether to keep the newest snapshots in the shared memory of each host, too.

    Raises:
        ValueError: if keep is less than 1.
    """

    def __init__(
        self,
        directory: str,
        strategy: tf.distribute.Strategy,
        *,
        model: str,
        made_by: Mapping[str, str],
        keep: int,
        memory: bool,
    ) -> None:
        self._directory, self._strategy, self._model, self._made_by = directory, strategy, model, made_by
        self._worker, self._workers = worker_index(strategy), count_workers(strategy)
        self._disk = DiskTier(directory, keep=keep)
        self._writer = BackgroundWriter()
        self._use_memory = memory
        self._memory: MemoryTier | None = None
        self._step_on_disk = -1

    def newest(self) -> Part | None:
        """Returns this worker's part of the newest snapshot that all workers have; None if there is none.

        The arrays of a part in shared memory change when later parts are kept.

        Raises:
            ValueError: if the snapshots are of another model, or if another training uses the directory.
            OSError: if another worker has failed.
        """
        to = f"go on from the snapshots in {self._directory!r}"
        run, found, stored = 0, [], None
        failure: Exception | None = None
        try:
            if self._use_memory:
                self._memory = _memory_of(self._directory, self._worker)
            parts = self._memory.parts() if self._memory is not None else []
            found = [part for part in parts if part.notes["model"] == self._model]
            stored = self._disk.newest(model=self._model)
            run = random.SystemRandom().getrandbits(62)
            if self._worker == 0:
                Contributions(Path(self._directory), run).begin()
        except (OSError, ValueError) as error:
            failure = error
        steps = [part.step for part in found[:_OFFERS]]
        offers = [*steps, *[-1] * (_OFFERS - len(steps)), stored.manifest.step if stored is not None else -1, run]
        rows = agree(self._strategy, offers, failure=failure, to=to)
        self._contributions = Contributions(Path(self._directory), rows[0][-1])
        self._step_on_disk = rows[0][-2]
        on_disk = self._step_on_disk if self._step_on_disk >= 0 else None
        choice = choose([[step for step in row[:_OFFERS] if step >= 0] for row in rows], on_disk)
        if choice is None:
            return None
        if choice.in_memory:
            return next(part for part in found if part.step == choice.step)
        part, failure = None, None
        try:
            part = self._from_disk(stored, choice.step)
        except (OSError, ValueError) as error:
            failure = error
        agree(self._strategy, [], failure=failure, to=to)
        return part

    def keep(self, part: Part, *, finished: bool = False) -> None:
        """Keeps a part in memory, and begins to write it to the disk unless an earlier part is still being written.

        Args:
            part: the part; its notes contain the fingerprint of the model as "model".
            finished: whether the training ends here. The function then returns when the part is on the disk, and ends
                the use of the snapshots. If the disk is full, the part stays in memory.
        """
        if finished:
            self._writer.wait()
        in_memory = self._keep_in_memory(part)
        is_due = exchange(self._strategy, [not self._writer.is_busy], dtype="int64", to="take a snapshot")
        if is_due[0] == (1,):
            stack = contextlib.ExitStack()
            # Pinned before the thread starts, since the next part may be kept before the thread runs.
            pinned = self._memory.pinned() if in_memory and self._memory is not None else None
            data = stack.enter_context(pinned) if pinned is not None else _bytes_of(part)

            def store() -> None:
                with stack:
                    self._store(part.step, data, finished=finished)

            self._writer.start(store, to=f"write the snapshot of step {part.step}")
        if finished and self._writer.wait():
            self._step_on_disk = part.step
            self.close()

    def close(self) -> None:
        """Ends the use of the snapshots, and gives the shared memory back if the newest snapshot is on the disk."""
        if self._memory is not None:
            newest = self._memory.newest()
            if newest is None or newest.step <= self._step_on_disk:
                self._memory.clear()
            else:
                self._memory.close()
            self._memory = None

    def _keep_in_memory(self, part: Part) -> bool:
        if self._memory is None:
            return False
        try:
            self._memory.write(part)
        except OSError as error:
            get_logger().warning("no snapshots are kept in shared memory: %s", error)
            self._writer.wait()
            self._memory.clear()
            self._memory = None
            return False
        return True

    def _store(self, step: int, data: memoryview, *, finished: bool) -> None:
        """Writes a part to the disk; called in a thread."""
        own = read_part(data)
        has_parts = self._workers > 1 and any(map(is_of_one_replica, own.values))
        if self._worker > 0:
            if has_parts:
                values = {name: value for name, value in own.values.items() if is_of_one_replica(name)}
                kept = _bytes_of(dataclasses.replace(own, values=values))
                self._contributions.give(step, f"worker-{self._worker}", kept)
            return
        others = [f"worker-{i}" for i in range(1, self._workers)] if has_parts else []
        self._disk.write(
            step,
            {"worker-0": data},
            model=self._model,
            finished=finished,
            made_by=self._made_by,
            take_others=lambda folder: self._contributions.take(step, others, folder, deadline_seconds=_PART_SECONDS),
        )

    def _from_disk(self, stored: Stored | None, step: int) -> Part:
        if stored is None or stored.manifest.step != step:
            raise ValueError(
                f"expected worker {self._worker} to find the snapshot of step {step} in {self._directory!r}, received "
                f"{'none' if stored is None else f'that of step {stored.manifest.step}'}; use a directory that all "
                "workers share."
            )
        part = stored.part("worker-0")
        name = f"worker-{self._worker}"
        if self._worker > 0 and name in stored.manifest.parts:
            own = stored.part(name)
            part = dataclasses.replace(part, values={**part.values, **own.values})
        return part


def _memory_of(directory: str, worker: int) -> MemoryTier | None:
    try:
        return MemoryTier(directory, worker=worker)
    except OSError as error:
        get_logger().warning("no snapshots are kept in shared memory: %s", error)
        return None


def _bytes_of(part: Part) -> memoryview:
    index = index_of(part)
    buffer = memoryview(bytearray(size_of_values(part.values) + len(index)))
    write_part(part, buffer, index)
    return buffer
