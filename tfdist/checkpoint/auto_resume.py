"""AutoResume: a callback with which a fit that was interrupted goes on with its next batch."""

from __future__ import annotations

import hashlib
import json
import platform
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._log import get_logger
from tfdist._version import __version__
from tfdist.checkpoint.components import assign_values, read_values, variable_of
from tfdist.checkpoint.part import Part
from tfdist.checkpoint.snapshots import Snapshots
from tfdist.keras_compat.resume.callbacks import LastCallback, plain_state, set_plain_state, watch_callbacks
from tfdist.keras_compat.resume.first_step import before_first_step
from tfdist.keras_compat.resume.position import training_data, watch_training_data
from tfdist.keras_compat.resume.variables import build_optimizer, training_variables
from tfdist.keras_compat.version import keras_in_use
from tfdist.workers import count_workers, worker_index

_CALLBACKS = "callbacks"


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
        if keep < 1:
            raise ValueError(f"expected keep to be at least 1, received {keep}.")
        watch_callbacks()
        watch_training_data()
        self._directory, self._every, self._keep, self._use_memory = directory, every_steps, keep, memory
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
        replicas = self._strategy.num_replicas_in_sync // count_workers(self._strategy)
        self._first_replica = worker_index(self._strategy) * replicas
        self._model_name = fingerprint(self.model)
        self._snapshots = Snapshots(
            self._directory,
            self._strategy,
            model=self._model_name,
            made_by=versions(),
            keep=self._keep,
            memory=self._use_memory,
        )
        part = self._snapshots.newest()
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
            self._snapshots.close()
        else:
            self._take(finished=True)

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
            "stopped": bool(self.model.stop_training),
            _CALLBACKS: states,
            "model": self._model_name,
            "replicas": self._strategy.num_replicas_in_sync,
        }
        values = read_values(training_variables(self.model), first_replica=self._first_replica)
        part = Part(step=self._steps, values={**values, **arrays}, notes=notes)
        self._snapshots.keep(part, finished=finished)

    def _restore(self, part: Part) -> set[str]:
        """Assigns values to all variables that exist, and to other callbacks; returns the names of the others."""
        replicas = self._strategy.num_replicas_in_sync
        if part.notes["replicas"] != replicas:
            raise ValueError(
                f"expected a snapshot of {replicas} replicas in {self._directory!r}, received one of "
                f"{part.notes['replicas']}; go on with as many replicas."
            )
        variables = training_variables(self.model)
        missing = assign_values(variables, part.values, first_replica=self._first_replica)
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
        assign_values(variables, values, first_replica=self._first_replica)


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
