"""ResumableLoop: lets a training loop of one's own go on after a restart of the program."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import tensorflow as tf

from tfdist.checkpoint.keeper import Keeper, Options
from tfdist.checkpoint.order_of_data import check_order
from tfdist.checkpoint.part import Part
from tfdist.checkpoint.trained_variables import TrainedVariables
from tfdist.keras_compat.local_steps.own_variables import OwnVariables
from tfdist.keras_compat.resume.data_of_fit import (
    depends_on_earlier_epochs,
    is_endless,
    is_shorter,
    moved,
    read_batches,
    say_what_was_read,
)
from tfdist.keras_compat.resume.variables import variables_of


class ResumableLoop:
    """Keeps snapshots of a training loop, and lets the same loop go on from the newest one after a restart.

    The options are those of AutoResume.

    Args:
        directory: directory of the snapshots of this program; all workers share it. A second loop of the same program
            has a directory of its own within it.
        objects: everything that the loop changes, by name: models, optimizers, metrics, and variables. All of their
            variables have to exist: build the optimizer before, with `optimizer.build(model.trainable_variables)`.
        strategy: strategy of the training; None is the current one.
        every_steps: number of steps between two snapshots.
        every_seconds: time between two snapshots, instead of every_steps.
        overhead: largest share of the training time that snapshots may take, if neither of the two is given.
        memory: whether to keep the newest snapshots in the shared memory of each host, too.
        keep: number of snapshots to keep on disk.
        preemption_seconds: how long the workers may take, after one of them has received SIGTERM, to agree on a step
            and to write its snapshot.
        preemption_signals: names of the signals that announce a preemption.

    Raises:
        ValueError: if an option has no meaning, if another training uses the directory, or if the data cannot be read
            again in the same order.

    Example:
        >>> import tempfile, tensorflow as tf
        >>> from tfdist.checkpoint import ResumableLoop
        >>> total = tf.Variable(0, dtype=tf.int64)
        >>> with ResumableLoop(tempfile.mkdtemp(), {"total": total}) as loop:
        ...     for batch in loop.batches(tf.data.Dataset.range(4), epochs=2):
        ...         _ = total.assign_add(batch)
        ...         loop.step()
        >>> int(total), loop.steps
        (12, 8)
    """

    def __init__(
        self,
        directory: str,
        objects: Mapping[str, Any],
        *,
        strategy: tf.distribute.Strategy | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        overhead: float = 0.02,
        memory: bool = True,
        keep: int = 2,
        preemption_seconds: float = 25.0,
        preemption_signals: tuple[str, ...] = ("SIGTERM",),
    ) -> None:
        options = Options(
            every_steps=every_steps,
            every_seconds=every_seconds,
            overhead=overhead,
            memory=memory,
            keep=keep,
            preemption_seconds=preemption_seconds,
            preemption_signals=preemption_signals,
        )
        self._keeper = Keeper(directory, options)
        self._strategy = tf.distribute.get_strategy() if strategy is None else strategy
        self._own = OwnVariables(list(objects.values()))
        self._variables = TrainedVariables(lambda: variables_of(objects), self._strategy, self._own)
        self.steps = 0
        """Number of steps since the beginning of the training."""
        self.epoch = 0
        """Number of the current epoch, from 0."""
        self._step = 0
        self._last_end: float | None = None
        self._is_finished = False
        # Number of epochs that calls of `batches` in this process have completed.
        self._complete = 0

    def __enter__(self) -> ResumableLoop:
        self._own.build(self._strategy)
        self._name = self._variables.fingerprint(kind="objects/", optimizers="")
        part = self._keeper.begin(self._strategy, model=self._name)
        if part is None:
            self._keeper.say_that_it_begins()
        else:
            self._restore(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._keeper.finish(None if self._is_finished else self._part(is_finished=True))

    def batches(self, dataset: Any, *, epochs: int = 1, steps_per_epoch: int | None = None) -> Iterator[Any]:
        """Yields the batches that the training has not seen yet; call `step` after each one.

        Args:
            dataset: a dataset or a distributed dataset. A dataset that ends is read again in each epoch.
            epochs: number of epochs of the whole training. If the method is called several times, each call goes on
                from the one before, with more epochs.
            steps_per_epoch: number of steps of an epoch, for a dataset without an end. The dataset that
                `distribute_files` returns knows it.

        Raises:
            ValueError: if the order of the data is drawn without a seed, if a dataset without an end has no
                steps_per_epoch, if a dataset is too short, or if an earlier call has completed the epochs.
        """
        if epochs <= self._complete:
            raise ValueError(
                f"expected epochs={self._complete + 1} or more in another call of batches, received {epochs}, which an "
                "earlier call has completed; call batches once with the epochs of the whole training, and read the "
                "number of the epoch from `epoch` of the loop."
            )
        check_order(dataset)
        if getattr(dataset, "repeats", False) and steps_per_epoch is None:
            steps_per_epoch = dataset.steps_per_epoch
        if steps_per_epoch is None and is_endless(dataset):
            raise ValueError(
                "expected steps_per_epoch for a dataset without an end, received None; pass it to batches."
            )
        if steps_per_epoch is not None and not self._is_finished and is_shorter(dataset, epochs * steps_per_epoch):
            raise _too_short(epochs, steps_per_epoch)
        source = moved(dataset, self.steps)
        seen = 0 if source is not None else self._step
        # With steps_per_epoch one iterator serves all epochs; otherwise each epoch has an iterator of its own.
        if steps_per_epoch is not None:
            one = iter(dataset if source is None else source)
            read_batches(one, 0 if source is not None else self.epoch * steps_per_epoch + self._step)
        else:
            for _ in range(self.epoch if source is None else 0):
                one = iter(dataset)
                if depends_on_earlier_epochs(dataset):
                    read_batches(one, None)
        while self.epoch < epochs and not self._is_finished:
            if steps_per_epoch is not None:
                batches = itertools.islice(one, steps_per_epoch - self._step)
            else:
                batches = iter(dataset if source is None else source)
                read_batches(batches, seen)
                seen, source = 0, None
            say_what_was_read()
            for batch in batches:
                before = self.steps
                yield batch
                if self.steps != before + 1:
                    raise ValueError(
                        f"expected one call of step after each batch, received {self.steps - before}; call it once."
                    )
            if steps_per_epoch is not None and self._step < steps_per_epoch:
                raise _too_short(epochs, steps_per_epoch)
            self.epoch, self._step = self.epoch + 1, 0
            if self._keeper.pace.is_due(self.steps):
                self._keeper.keep(self._part())
        self._complete = max(self._complete, epochs)

    def step(self) -> None:
        """Counts a step, and takes a snapshot if one is due; all workers call the method after each step.

        Raises:
            SystemExit: with code 75, if the training is preempted.
        """
        now = time.perf_counter()
        if self._last_end is not None:
            self._keeper.pace.step_took(now - self._last_end)
        self.steps += 1
        self._step += 1
        if self._last_end is None:
            self._keeper.prepare(self._part())
        self._keeper.record(self.steps)
        if self._keeper.must_leave():
            self._keeper.leave(self._part())
        if self._keeper.pace.is_due(self.steps):
            self._keeper.keep(self._part())
            now = time.perf_counter()
        self._last_end = now

    def _part(self, *, is_finished: bool = False) -> Part:
        notes = {"epoch": self.epoch, "step": self._step, "is_finished": is_finished, "model": self._name}
        return Part(step=self.steps, values=self._variables.read(), notes=notes)

    def _restore(self, part: Part) -> None:
        self.steps, self.epoch, self._step = part.step, part.notes["epoch"], part.notes["step"]
        self._is_finished = part.notes["is_finished"]
        where = f"epoch {self.epoch + 1}, step {self._step}"
        self._keeper.say_what_goes_on(part, is_finished=self._is_finished, where=where)
        waiting = self._variables.restore(part, kinds=("objects/", "others/"))
        if waiting:
            raise ValueError(
                f"expected all variables of the snapshot in {self._keeper.directory!r} to exist, received none for "
                f"{', '.join(sorted(waiting)[:3])}; build the model and the optimizer, or trace the step, before the "
                "loop begins."
            )


def _too_short(epochs: int, steps_per_epoch: int) -> ValueError:
    return ValueError(
        f"expected a dataset with {epochs * steps_per_epoch} batches for {epochs} epochs of {steps_per_epoch} steps, "
        "received one that ends before; call repeat on it, or leave steps_per_epoch out to read it once in each epoch."
    )
