"""AutoResume: a callback with which a fit that was interrupted goes on with its next batch."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import random
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist._version import __version__
from tfdist.checkpoint.choice import choose
from tfdist.checkpoint.components import assign_values, is_of_one_replica, read_values, variable_of
from tfdist.checkpoint.contributions import Contributions
from tfdist.checkpoint.disk import DiskTier, Stored
from tfdist.checkpoint.memory import MemoryTier
from tfdist.checkpoint.part import Part, index_of, read_part, size_of_values, write_part
from tfdist.checkpoint.writer import BackgroundWriter
from tfdist.keras_compat.resume.callbacks import LastCallback, plain_state, set_plain_state, watch_callbacks
from tfdist.keras_compat.resume.first_step import before_first_step
from tfdist.keras_compat.resume.position import training_data, watch_training_data
from tfdist.keras_compat.resume.variables import build_optimizer, training_variables
from tfdist.keras_compat.version import keras_in_use
from tfdist.workers import agree, count_workers, exchange, worker_index

_CALLBACKS = "callbacks"
# A worker offers this many parts of its memory. Two are enough, since no worker is more than one snapshot ahead.
_OFFERS = 3
_PART_SECONDS = 60.0


class AutoResume(LastCallback):
    """Keeps snapshots of a fit, and lets the same fit go on from the newest one after a restart of the program.

    Args:
        directory: directory of the snapshots of this fit; all workers share it.
        every_steps: number of steps between two snapshots.
        memory: whether to keep the newest snapshots in the shared memory of each host, too.
        keep: number of snapshots to keep on disk.

    Raises:
        ValueError: if an option has no meaning, or if another training uses the directory.
    """

    def __init__(self, directory: str, *, every_steps: int = 100, memory: bool = True, keep: int = 2) -> None:
        super().__init__()
        if every_steps < 1:
            raise ValueError(f"expected every_steps to be at least 1, received {every_steps}.")
        watch_callbacks()
        watch_training_data()
        self._directory, self._every, self._use_memory = directory, every_steps, memory
        self._disk = DiskTier(directory, keep=keep)
        self._writer = BackgroundWriter()
        self._memory: MemoryTier | None = None
        # The part that is restored before the first step of this process, and values whose variables the trace makes.
        self._loaded: Part | None = None
        # The other callbacks, and the state that the program has given them.
        self._others: list[tuple[Any, dict[str, Any]]] = []
        # `_epoch` and `_step` say which step comes next, `_steps` counts the steps of all epochs.
        self._epoch = self._first_epoch = self._steps = self._step = 0

    def before_train(self, others: list[Any]) -> None:
        """Finds the newest snapshot that all workers have, and prepares fit to go on from it."""
        self._others = [(other, plain_state(other, {}, "")) for other in others]
        self._data, self._strategy = training_data(), self.model.distribute_strategy
        self._worker, self._workers = worker_index(self._strategy), count_workers(self._strategy)
        self._replicas = self._strategy.num_replicas_in_sync // self._workers
        self._model_name = fingerprint(self.model)
        part = self._agree_on_start()
        if part is None:
            get_logger().info("no snapshot in %s: the training begins", self._directory)
            return
        notes = part.notes
        self._loaded = part
        self._epoch, self._step, self._steps = notes["epoch"], notes["step"], part.step
        self._first_epoch = notes["first_epoch"]
        is_finished = notes["stopped"] or self._epoch >= self.params["epochs"]
        get_logger().info(
            "%s from the snapshot of step %d (epoch %d, step %d) in %s",
            "the training is finished: restored" if is_finished else "the training goes on",
            self._steps,
            self._epoch + 1,
            self._step,
            self._directory,
        )
        if is_finished:
            # Once more in after_train, because other callbacks begin anew in their on_train_begin.
            build_optimizer(self.model)
            self._restore(part)
            self._data.end(self.model)
            return
        self._data.go_to(
            self.model,
            epoch=self._epoch,
            epochs=self._epoch - self._first_epoch,
            step=self._step,
            steps=self._steps,
            num_batches=notes["num_batches"],
        )

    def after_epoch_begin(self, epoch: int) -> None:
        """Restores the variables and the other callbacks, in the first epoch after a restart."""
        part, self._loaded = self._loaded, None
        if part is None:
            self._epoch, self._step = epoch, 0
            if not self._steps:
                self._first_epoch = epoch
            return
        waiting = self._restore(part)
        if waiting:
            # The arrays of a part in shared memory change when later parts are written.
            values = {name: np.array(value) for name, value in part.values.items() if variable_of(name) in waiting}
            before_first_step(self.model, lambda: self._restore_traced(values))

    def after_train_batch(self, batch: int) -> None:
        """Takes a snapshot after every so many steps."""
        self._steps += batch + 1 - self._step
        self._step = batch + 1
        # The last step of an epoch is followed by the snapshot at its end.
        if self._steps % self._every == 0 and self._step != self.params["steps"]:
            self._take()

    def after_epoch_end(self, epoch: int) -> None:
        """Takes a snapshot at the end of the epoch."""
        self._epoch, self._step = epoch + 1, 0
        self._take()

    def after_train(self) -> None:
        """Keeps the end of the training on disk, and removes what is in memory."""
        if self._loaded is not None:
            self._restore(self._loaded)
        else:
            self._take(finished=True)
        self._writer.wait()
        if self._memory is not None:
            self._memory.clear()
            self._memory = None

    def _take(self, *, finished: bool = False) -> None:
        arrays: dict[str, np.ndarray] = {}
        states = [
            [type(other).__name__, plain_state(other, arrays, f"{_CALLBACKS}/{i}", since=since)]
            for i, (other, since) in enumerate(self._others)
        ]
        notes = {
            "epoch": self._epoch,
            "step": self._step,
            "first_epoch": self._first_epoch,
            "num_batches": self._data.num_batches,
            "stopped": finished or bool(self.model.stop_training),
            _CALLBACKS: states,
            "model": self._model_name,
            "replicas": self._strategy.num_replicas_in_sync,
        }
        values = read_values(training_variables(self.model), first_replica=self._worker * self._replicas)
        part = Part(step=self._steps, values={**values, **arrays}, notes=notes)
        in_memory = self._keep_in_memory(part)
        if finished:
            self._writer.wait()
        is_due = exchange(self._strategy, [not self._writer.is_busy], dtype="int64", to="take a snapshot")
        if is_due[0] == (1,):
            data = None if in_memory else _bytes_of(part)
            to = f"write the snapshot of step {part.step}"
            self._writer.start(lambda: self._store(part.step, data, finished=finished), to=to)

    def _keep_in_memory(self, part: Part) -> bool:
        if self._memory is None:
            return False
        try:
            self._memory.write(part)
        except OSError as error:
            get_logger().warning("no snapshots are kept in shared memory: %s", error)
            self._memory.clear()
            self._memory = None
            return False
        return True

    def _store(self, step: int, data: memoryview | None, *, finished: bool) -> None:
        """Writes a part to the disk; called in a thread."""
        with contextlib.ExitStack() as stack:
            if data is None:
                assert self._memory is not None
                data = stack.enter_context(self._memory.pinned())
            name = f"worker-{self._worker}"
            own = read_part(data)
            has_parts = self._workers > 1 and any(map(is_of_one_replica, own.values))
            if self._worker > 0:
                if has_parts:
                    values = {name: value for name, value in own.values.items() if is_of_one_replica(name)}
                    kept = dataclasses.replace(own, values=values)
                    self._contributions.give(step, name, _bytes_of(kept))
                return
            others = [f"worker-{i}" for i in range(1, self._workers)] if has_parts else []
            self._disk.write(
                step,
                {name: data},
                model=self._model_name,
                finished=finished,
                made_by=versions(),
                take_others=lambda folder: self._contributions.take(
                    step, others, folder, deadline_seconds=_PART_SECONDS
                ),
            )

    def _agree_on_start(self) -> Part | None:
        """Returns this worker's part of the newest snapshot that all workers have, or None."""
        to = f"go on from the snapshots in {self._directory!r}"
        run, found, stored = 0, [], None
        failure: Exception | None = None
        try:
            if self._use_memory and self._memory is None:
                self._memory = _memory_of(self._directory, self._worker)
            parts = self._memory.parts() if self._memory is not None else []
            found = [part for part in parts if part.notes["model"] == self._model_name]
            stored = self._disk.newest(model=self._model_name)
            run = random.SystemRandom().getrandbits(62)
            if self._worker == 0:
                Contributions(Path(self._directory), run).begin()
        except (OSError, ValueError) as error:
            failure = error
        steps = [part.step for part in found[:_OFFERS]]
        offers = [*steps, *[-1] * (_OFFERS - len(steps)), stored.manifest.step if stored is not None else -1, run]
        rows = agree(self._strategy, offers, failure=failure, to=to)
        self._contributions = Contributions(Path(self._directory), rows[0][-1])
        on_disk = rows[0][-2] if rows[0][-2] >= 0 else None
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
            part = dataclasses.replace(part, values={**part.values, **own.values}, notes=own.notes)
        return part

    def _restore(self, part: Part) -> set[str]:
        """Assigns values to all variables that exist, and to other callbacks; returns the names of the others."""
        replicas = self._strategy.num_replicas_in_sync
        if part.notes["replicas"] != replicas:
            raise ValueError(
                f"expected a snapshot of {replicas} replicas in {self._directory!r}, received one of "
                f"{part.notes['replicas']}; go on with as many replicas."
            )
        variables = training_variables(self.model)
        missing = assign_values(variables, part.values, first_replica=self._worker * self._replicas)
        for (other, _), (name, state) in zip(self._others, part.notes[_CALLBACKS], strict=False):
            if type(other).__name__ == name:
                set_plain_state(other, state, part.values)
        named = {variable_of(name) for name in part.values if not name.startswith(f"{_CALLBACKS}/")}
        if missing:
            get_logger().warning("the snapshot has no value for %s", ", ".join(missing))
        return named - set(variables)

    def _restore_traced(self, values: dict[str, np.ndarray]) -> None:
        """Assigns values to variables that the trace of the first step has made."""
        names = {variable_of(name) for name in values}
        variables = {name: one for name, one in training_variables(self.model).items() if name in names}
        lost = names - set(variables)
        if lost:
            raise ValueError(
                f"expected variables for {', '.join(sorted(lost))} of the snapshot in {self._directory!r}, received "
                "none; go on with the same model, optimizer and options."
            )
        assign_values(variables, values, first_replica=self._worker * self._replicas)


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


def fingerprint(model: Any) -> str:
    """Returns a hash of the names, shapes and dtypes of the variables of a model and its optimizer.

    Args:
        model: a compiled Keras model.
    """
    described: list[Any] = [
        [name, str(variable.dtype.name), list(variable.shape)]
        for name, variable in training_variables(model).items()
        if name.startswith("model/")
    ]
    described.append(type(model.optimizer).__name__)
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Returns the versions of what makes a snapshot, by name."""
    return {
        "tfdist": __version__,
        "tensorflow": tf.__version__,
        keras_in_use().name: keras_in_use().version,
        "python": platform.python_version(),
    }
