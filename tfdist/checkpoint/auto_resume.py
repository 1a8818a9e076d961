"""AutoResume: a callback with which a fit that was interrupted goes on with its next batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tfdist._log import get_logger
from tfdist.checkpoint.keeper import Keeper, Options
from tfdist.checkpoint.order_of_data import check_order, restore_shuffling, state_of_shuffling
from tfdist.checkpoint.part import Part
from tfdist.checkpoint.state_of_fit import StateOfFit, logs_of
from tfdist.keras_compat.resume.callbacks import LastCallback, watch_callbacks
from tfdist.keras_compat.resume.data_of_fit import is_asynchronous
from tfdist.keras_compat.resume.files import refuse_other_resumers
from tfdist.keras_compat.resume.first_step import before_first_step
from tfdist.keras_compat.resume.position import training_data, watch_training_data


class AutoResume(LastCallback):
    """Keeps snapshots of a fit, and lets the same fit go on from the newest one after a restart of the program.

    A snapshot has the weights, the slots of the optimizer, the loss scale, the states of random layers, the metrics in
    the middle of an epoch, History, the position in the data, the residuals of compression, and what the other
    callbacks remember. A training that is killed at any time and started again ends with the same bits as one that was
    never interrupted, on as many replicas.

    Snapshots are kept in shared memory of each host, which outlives the process, and less often on disk, by a thread.
    On SIGTERM all workers take a snapshot after the same step and exit with code 75, which means "start me again".

    With parameter servers, whose workers make steps at different times, a snapshot is taken at the end of each epoch.
    The training goes on with the next epoch, and the order of the records is another one.

    Args:
        directory: directory of the snapshots of this program; all workers share it. A second fit of the same program
            has a directory of its own within it.
        every_steps: number of steps between two snapshots. Each one is also written to the disk, unless an earlier one
            is still being written.
        every_seconds: time between two snapshots, instead of every_steps.
        overhead: largest share of the training time that snapshots may take, if neither of the two is given. The
            callback measures what a snapshot costs, and the log says what it has chosen.
        memory: whether to keep the newest snapshots in the shared memory of each host, too.
        keep: number of snapshots to keep on disk.
        preemption_seconds: how long the workers may take, after one of them has received SIGTERM, to agree on a step
            and to write its snapshot.
        preemption_signals: names of the signals that announce a preemption.

    Raises:
        ValueError: if an option has no meaning, if another training uses the directory, or if the data cannot be read
            again in the same order.

    Example:
        >>> import tempfile, numpy as np, tensorflow as tf
        >>> from tfdist.checkpoint import AutoResume
        >>> tf.keras.utils.set_random_seed(1)
        >>> model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> resume = AutoResume(tempfile.mkdtemp())
        >>> history = model.fit(np.ones([8, 2]), np.ones([8, 1]), epochs=2, verbose=0, callbacks=[resume])
        >>> len(history.history["loss"])
        2
    """

    def __init__(
        self,
        directory: str,
        *,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        overhead: float = 0.02,
        memory: bool = True,
        keep: int = 2,
        preemption_seconds: float = 25.0,
        preemption_signals: tuple[str, ...] = ("SIGTERM",),
    ) -> None:
        super().__init__()
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
        watch_callbacks()
        watch_training_data()

    def before_train(self, others: list[Any]) -> None:
        """Finds the newest snapshot that all workers have, and prepares fit to go on from it."""
        self._data, strategy = training_data(), self.model.distribute_strategy
        self._state = StateOfFit(self.model, strategy, others, directory=self._keeper.directory)
        # `_epoch` and `_step` say which step comes next, `_steps` counts the steps of all epochs.
        self._epoch = self._first_epoch = self._steps = self._step = self._execution_begin = 0
        self._logs: Mapping[str, Any] = {}
        self._last_end: float | None = None
        self._is_prepared = self._stops = self._is_over = False
        self._is_asynchronous = is_asynchronous(self.model)
        # The part that is restored at the beginning of the first epoch of this process.
        self._loaded: Part | None = None
        refuse_other_resumers(others)
        self._data.begin(self.model)
        # A fit that follows others begins at a later epoch of the order.
        self._iterations = getattr(self._data.dataset, "iterations", None)
        if not self._is_asynchronous:
            check_order(self._data.dataset)
        self._order = state_of_shuffling() if self._data.is_shuffled else None
        part = self._keeper.begin(strategy, model=self._state.model_name)
        if part is None:
            self.training_begins()
        else:
            self._go_to(part)

    def _go_to(self, part: Part) -> None:
        notes = part.notes
        self._loaded = part
        self._epoch, self._step, self._steps = notes["epoch"], notes["step"], part.step
        self._first_epoch, self._execution_begin = notes["first_epoch"], notes["execution_begin"]
        self._logs = logs_of(part)
        if self._iterations is not None:
            self._iterations.go_to(notes.get("epochs_before", 0))
        is_finished = (notes["is_finished"] and notes["stopped"]) or self._epoch >= self.params["epochs"]
        # A callback has ended the training within an epoch, whose end is still to come.
        self._stops = notes["stopped"] and not is_finished
        where = f"epoch {self._epoch + 1}, step {self._step}" if self._step else f"the end of epoch {self._epoch}"
        self._keeper.say_what_goes_on(part, is_finished=is_finished, where=where)
        self._state.go_on_with_files(part)
        if is_finished:
            # Once more in after_train, because other callbacks begin anew in their on_train_begin.
            self._state.restore_finished(part)
            self._data.end(self.model)
            self._is_over = True
            return
        self._begin_changed_epoch_anew(notes)
        if self._order is not None and notes.get("order") is not None:
            self._order = notes["order"]
            restore_shuffling(self._order)
        self._data.go_to(
            self.model,
            epoch=self._epoch,
            epochs=self._epoch - self._first_epoch,
            # The last step is shown to Keras again, without being executed, since it may have been the last one.
            begin=self._execution_begin if self._step else 0,
            step=self._step,
            num_batches=notes["num_batches"],
        )

    def _begin_changed_epoch_anew(self, notes: Mapping[str, Any]) -> None:
        """Goes to the beginning of the epoch if it has another number of steps than before, of other batches then."""
        former, now = notes.get("steps_of_epoch", notes["num_batches"]), self._data.steps_of_epoch
        if self._step and not self._stops and None not in (former, now) and former != now:
            get_logger().warning(
                "an epoch had %d steps and has %d now: epoch %d begins anew, with the weights of the snapshot",
                former,
                now,
                self._epoch + 1,
            )
            self._step = 0

    def after_train_begin(self) -> None:
        """Notes what the other callbacks have been given, or have set themselves: a new start does so again."""
        if not self._is_over:
            # Otherwise they already contain what the snapshot has.
            self._state.callbacks_have_begun()

    def before_epoch_begin(self, epoch: int) -> None:
        """Restores a snapshot from between two epochs, before the other callbacks begin the epoch."""
        self._data.begin(self.model)
        if self._loaded is None:
            self._epoch, self._step = epoch, 0
            if not self._steps:
                self._first_epoch = epoch
        elif not self._step:
            self._restore_before_first_step()
            self.model.reset_metrics()

    def after_epoch_begin(self, epoch: int) -> None:
        """Restores a snapshot from the middle of an epoch, after the other callbacks have begun the epoch."""
        self._last_end = None
        if self._loaded is not None:
            self._restore_before_first_step()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remembers the first step of an execution."""
        self._execution_begin = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Remembers the logs."""
        self._logs = logs or {}

    def after_train_batch(self, batch: int) -> None:
        """Takes a snapshot if one is due."""
        if self.hides_step:
            self.hides_step = False
            self.model.stop_training = self._stops
            return
        now = time.perf_counter()
        steps = batch + 1 - self._step
        if self._last_end is not None and steps:
            self._keeper.pace.step_took((now - self._last_end) / steps)
        self._last_end = now
        self._steps += steps
        self._step = batch + 1
        if self._is_asynchronous:
            return
        if not self._is_prepared:
            self._keeper.prepare(self._part())
            self._is_prepared = True
        self._keeper.record(self._steps)
        if self._keeper.must_leave():
            self._keeper.leave(self._part())
        # The last step of an epoch is followed by the snapshot at its end.
        elif self._keeper.pace.is_due(self._steps) and self._step != self._data.num_batches:
            self._keeper.keep(self._part())
            self._last_end = time.perf_counter()

    def on_test_begin(self, logs: Any = None) -> None:
        """Remembers the metrics of the training, which a validation uses again."""
        self._metrics = self._state.read_metrics()

    def after_test_batch(self, batch: int) -> None:
        """Ends the training during its validation if it is preempted."""
        if not self._is_asynchronous and self._keeper.must_leave():
            self._keeper.leave(self._part(metrics=self._metrics))

    def after_epoch_end(self, epoch: int) -> None:
        """Takes a snapshot at the end of the epoch if one is due."""
        self._epoch, self._step = epoch + 1, 0
        if self.model.stop_training or self._epoch >= self.params["epochs"]:
            # The training ends, which may change the weights once more: `after_train` takes the last snapshot.
            return
        if self._is_asynchronous and self._keeper.must_leave():
            self._keeper.leave(self._part())
        if self._is_asynchronous or self._keeper.pace.is_due(self._steps):
            self._keeper.keep(self._part())

    def training_begins(self) -> None:
        """Called if there is no snapshot: writes so to the log."""
        self._keeper.say_that_it_begins()

    def before_snapshot(self, logs: Mapping[str, Any]) -> None:
        """Called before each snapshot; a subclass may refuse the snapshot with an error, which ends the training.

        All workers call the method after the same step.

        Args:
            logs: the logs of the last step, or of the epoch that has ended.
        """

    def after_train(self) -> None:
        """Keeps the end of the training on disk, and removes what is in memory."""
        self._data.begin(self.model)
        if self._loaded is not None:
            self._state.restore(self._loaded, in_epoch=self._loaded.notes["step"] > 0)
        is_kept = self._loaded is not None and self._loaded.notes["is_finished"]
        self._keeper.finish(None if is_kept else self._part(is_finished=True))

    def _part(self, *, metrics: Mapping[str, Any] | None = None, is_finished: bool = False) -> Part:
        self.before_snapshot(self._logs)
        position = {
            "epoch": self._epoch,
            "step": self._step,
            "first_epoch": self._first_epoch,
            "execution_begin": self._execution_begin,
            "num_batches": self._data.num_batches,
            "epochs_before": 0 if self._iterations is None else self._iterations.epochs_before,
            "steps_of_epoch": self._data.steps_of_epoch,
            "order": self._order,
        }
        return self._state.read(
            step=self._steps,
            position=position,
            logs=self._logs if self._step else {},
            metrics=metrics,
            is_finished=is_finished,
        )

    def _restore_before_first_step(self) -> None:
        part, self._loaded = self._loaded, None
        if part is None:
            return
        waiting = self._state.restore(part, in_epoch=self._step > 0)
        if not waiting and not self._step:
            return
        self.hides_step = self._step > 0
        before_first_step(
            self.model,
            lambda: self._state.restore_made(waiting, former_replicas=part.notes["replicas"]),
            makes_variables=bool(waiting),
            batches=self._step - self._execution_begin,
            logs=self._logs if self._step else None,
        )
