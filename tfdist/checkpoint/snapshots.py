"""Snapshots: keeps the parts of one worker in memory and on disk, and finds those from which all workers go on."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.choice import Choice, choose, numbers_of, offer_of, offers_in
from tfdist.checkpoint.components import is_of_one_replica
from tfdist.checkpoint.contributions import Contributions
from tfdist.checkpoint.disk import DiskTier, Stored
from tfdist.checkpoint.in_use import InUse
from tfdist.checkpoint.memory import MemoryTier, remove_unused
from tfdist.checkpoint.pace import Costs, Pace
from tfdist.checkpoint.part import Part, bytes_of, index_of, read_part, size_of_values
from tfdist.checkpoint.transfer import broadcast, gather, is_gathered
from tfdist.checkpoint.writer import BackgroundWriter
from tfdist.workers import agree, count_workers, worker_index

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
        pace: says which snapshots are written to the disk, and learns what a snapshot costs.

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
        pace: Pace,
    ) -> None:
        self._directory, self._strategy, self._model, self._made_by = directory, strategy, model, made_by
        self._worker, self._workers = worker_index(strategy), count_workers(strategy)
        self._keep = keep
        self._writer = BackgroundWriter()
        self._pace, self._replicas = pace, strategy.num_replicas_in_sync
        self._use_memory = memory
        self._memory: MemoryTier | None = None
        # Worker 0 marks the directory, which all workers share.
        self._in_use: InUse | None = None
        self._memory_is_full = False
        # Step of the newest snapshot on disk, and whether the training ended with it; then those of the one being made.
        self._on_disk = self._begun = (-1, False)

    def newest(self) -> Part | None:
        """Returns this worker's part of the newest snapshot that all workers have; None if there is none.

        If the number of replicas has changed, the part has the values of all former replicas. The arrays of a part in
        shared memory change when later parts are kept.

        Raises:
            ValueError: if the snapshots are of another model, or if another training uses the directory.
            OSError: if another worker has failed.
        """
        to = f"go on from the snapshots in {self._directory!r}"
        run, found, stored = 0, [], None
        failure: Exception | None = None
        try:
            self._disk = DiskTier(self._directory, keep=self._keep)
            if self._worker == 0:
                in_use = InUse(self._directory)
                in_use.begin()
                self._in_use = in_use
            if self._use_memory:
                self._memory = _memory_of(self._directory, self._worker)
            parts = self._memory.parts() if self._memory is not None else []
            found = [part for part in parts if part.notes["model"] == self._model][:_OFFERS]
            stored = self._disk.newest(model=self._model)
            run = random.SystemRandom().getrandbits(62)
            if self._worker == 0:
                Contributions(Path(self._directory), run).begin()
        except (OSError, ValueError) as error:
            failure = error
        offers = numbers_of([offer_of(part) for part in found], most=_OFFERS)
        step, finished = (stored.manifest.step, stored.manifest.finished) if stored is not None else (-1, False)
        rows = agree(self._strategy, [*offers, step, int(finished), run], failure=failure, to=to)
        step, finished, self._timeline = rows[0][-3], bool(rows[0][-2]), rows[0][-1]
        self._contributions = Contributions(Path(self._directory), self._timeline)
        self._on_disk = self._begun = (step, finished)
        choice = choose(
            [offers_in(row[:-3]) for row in rows],
            Choice(step=step, is_finished=finished) if step >= 0 else None,
            replicas=self._replicas,
        )
        if choice is None:
            return None
        if choice.in_memory:
            part = self._from_memory(found, choice)
            if choice.age > self._on_disk:
                # The memory of a host may be lost before the next snapshot.
                self._write(part, in_memory=False)
            return part
        failure = None
        try:
            found = [self._from_disk(stored, choice.step)]
        except (OSError, ValueError) as error:
            failure = error
        agree(self._strategy, [], failure=failure, to=to)
        return found[0]

    def keep(self, part: Part, *, on_disk: bool = False) -> bool:
        """Keeps a part in memory, and begins to write it to the disk if that is due and no earlier part is written.

        Args:
            part: the part. Its notes contain the fingerprint of the model as "model", and as "is_finished" whether the
                training ends with the part.
            on_disk: whether to return when the part is on the disk. If the disk is full, the part stays in memory.

        Returns:
            Whether the part is on the disk, the same on all workers; only known with `on_disk`.
        """
        if self._in_use is not None:
            self._in_use.check()
        begun = time.perf_counter()
        self._pace.write_took(self._writer.processor_seconds)
        costs = dataclasses.astuple(self._pace.costs)
        rows, others = gather(self._strategy, [not self._writer.is_busy, *costs], part.values, to="take a snapshot")
        exchanged = time.perf_counter()
        # Before it is decided whether this part is written: the part before may have been the first to be measured.
        choice = self._pace.decide([Costs(*row[1:]) for row in rows])
        values = {**part.values, **others}
        notes = {
            **part.notes,
            "timeline": self._timeline,
            "replicas": self._replicas,
            "is_whole": self._workers == 1 or not any(map(_is_kept_apart, values)),
        }
        whole = Part(step=part.step, values=values, notes=notes)
        in_memory = self._keep_in_memory(whole)
        is_free = all(row[0] for row in rows)
        is_due = on_disk or (is_free and self._pace.is_due_on_disk(part.step))
        if on_disk:
            # The part before may still be written, and this one is safe in memory meanwhile.
            self._writer.wait()
        if is_due:
            self._write(whole, in_memory=in_memory)
        self._pace.taken(part.step, on_disk=is_due)
        self._pace.wait_took(exchanged - begun)
        self._pace.copy_took(time.perf_counter() - exchanged)
        if choice is not None and self._worker == 0:
            get_logger().info("%s", choice)
        return on_disk and self.settle()

    def settle(self) -> bool:
        """Waits until the newest part is on the disk, and returns whether it is, on all workers alike.

        Worker 0 writes the snapshots. The other workers keep what they have in memory until it is complete.
        """
        rows, _ = gather(self._strategy, [self._writer.wait()], {}, to="write a snapshot")
        is_written = bool(rows[0][0])
        if is_written:
            self._on_disk = self._begun
        return is_written

    def _write(self, part: Part, *, in_memory: bool) -> None:
        """Begins to write a part to the disk."""
        self._begun = (part.step, bool(part.notes["is_finished"]))
        finished = self._begun[1]
        stack = contextlib.ExitStack()
        # Pinned before the thread starts, since the next part may be kept before the thread runs.
        pinned = self._memory.pinned() if in_memory and self._memory is not None else None
        data = stack.enter_context(pinned) if pinned is not None else bytes_of(part)

        def store() -> None:
            with stack:
                self._store(part.step, data, finished=finished)

        self._writer.start(store, to=f"write the snapshot of step {part.step}")

    def prepare(self, part: Part) -> None:
        """Begins to allocate the memory for parts of this size in a thread.

        Args:
            part: a part of the size that later parts have.
        """
        memory = self._memory
        if memory is not None:
            room = size_of_values(part.values) + len(index_of(part))
            self._writer.start(lambda: memory.reserve(room), to="reserve shared memory", is_measured=False)

    def flush(self, seconds: float | None = None) -> None:
        """Waits until no snapshot is being written.

        Args:
            seconds: how long to wait; None for as long as the write takes.
        """
        self._writer.wait(seconds)

    def close(self) -> None:
        """Ends the use of the snapshots, and gives the shared memory back if the newest snapshot is on the disk."""
        if self._memory is not None:
            newest = self._memory.newest()
            if newest is None or (newest.step, bool(newest.notes["is_finished"])) <= self._on_disk:
                self._memory.clear()
            else:
                self._memory.close()
            self._memory = None
        if self._in_use is not None:
            self._in_use.end()
        if self._on_disk[1]:
            # Workers of earlier starts, of which there may have been more, have left these.
            remove_unused(self._directory)

    def _keep_in_memory(self, part: Part) -> bool:
        if self._memory is None:
            return False
        try:
            self._memory.write(part)
        except OSError as error:
            # The parts before are still there, and there may be room again for the next one.
            if not self._memory_is_full:
                get_logger().warning("the snapshot of step %d is not kept in shared memory: %s", part.step, error)
            self._memory_is_full = True
            return False
        self._memory_is_full = False
        return True

    def _store(self, step: int, data: memoryview, *, finished: bool) -> None:
        """Writes a part to the disk; called in a thread."""
        own = read_part(data)
        has_parts = not own.notes["is_whole"]
        if self._worker > 0:
            if has_parts:
                values = {name: value for name, value in own.values.items() if _is_kept_apart(name)}
                kept = bytes_of(dataclasses.replace(own, values=values))
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
        values = dict(part.values)
        names = [f"worker-{self._worker}"] if part.notes["replicas"] == self._replicas else stored.manifest.parts
        for name in names:
            if name != "worker-0" and name in stored.manifest.parts:
                values.update(stored.part(name).values)
        return dataclasses.replace(part, values=values)

    def _from_memory(self, found: Sequence[Part], choice: Choice) -> Part:
        wanted = (choice.step, choice.is_finished, choice.timeline)
        own = [part for part in found if (part.step, part.notes["is_finished"], part.notes["timeline"]) == wanted]
        if choice.source is None:
            return own[0]
        # All workers read the received bytes, or else their parts of this step.
        data = broadcast(self._strategy, bytes_of(own[0]) if own else None, source=choice.source)
        return own[0] if own else read_part(data)


def _is_kept_apart(name: str) -> bool:
    """Returns whether only the worker of a value has it."""
    return is_of_one_replica(name) and not is_gathered(name)


def _memory_of(directory: str, worker: int) -> MemoryTier | None:
    try:
        return MemoryTier(directory, worker=worker)
    except OSError as error:
        get_logger().warning("no snapshots are kept in shared memory: %s", error)
        return None
