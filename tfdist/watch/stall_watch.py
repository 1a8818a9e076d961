"""StallWatch: a callback that says why a fit makes no step, and ends the job if it does not go on."""

from __future__ import annotations

import threading
from types import CodeType
from typing import Any

from tfdist.watch.callback_order import StepCallback, watch_steps
from tfdist.watch.frames import runs
from tfdist.watch.options import WatchOptions
from tfdist.watch.phases import SAVING
from tfdist.watch.watch import Watch


class _Calls:
    """Where Keras is. AutoResume restores plain attributes of callbacks, and must not restore these."""

    def __init__(self) -> None:
        # The kinds of the calls that are running: an evaluation may run within fit.
        self.running: list[str] = []
        self.next_batch = 0


class StallWatch(StepCallback):
    """Says in the log why a fit makes no step, and which worker is the cause, and ends the job if it does not go on.

    All workers pass the callback to fit. A worker that is stopped, has ended or is out of reach, one whose data does
    not come, one that computes or saves for too long, and one that is slower than the others are told from each other.
    Every worker writes the Python stacks of its threads to its log. After the deadline, all workers end with exit code
    75, by which `tfdist launch --max-restarts` and other schedulers start them again.

    Args:
        factor: a step may take this many times the usual duration.
        floor_seconds: a step may always take this long.
        deadline_seconds: how long a stall may last, after it was reported, before the job ends; None for ever.
        tracing_seconds: how long the first step may take, and any step in which TensorFlow traces a function.
        data_seconds: how long the first step of an epoch or evaluation may take.
        saving_seconds: how long callbacks may take between steps and epochs, and the program outside of fit.
        straggler_factor: a worker that takes this many times as long for a step as the others is named; it does not end
            the job.

    Raises:
        ValueError: if an option is not above 0, or a factor not above 1.

    Example:
        >>> import numpy as np, tensorflow as tf
        >>> from tfdist.watch import StallWatch
        >>> model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> data = np.ones([8, 2]), np.ones([8, 1])
        >>> history = model.fit(*data, batch_size=4, verbose=0, callbacks=[StallWatch(floor_seconds=30.0)])
    """

    def __init__(
        self,
        *,
        factor: float = 10.0,
        floor_seconds: float = 60.0,
        deadline_seconds: float | None = 300.0,
        tracing_seconds: float = 1800.0,
        data_seconds: float = 600.0,
        saving_seconds: float = 1800.0,
        straggler_factor: float = 2.0,
    ) -> None:
        super().__init__()
        self._options = WatchOptions(
            factor=factor,
            floor_seconds=floor_seconds,
            tracing_seconds=tracing_seconds,
            data_seconds=data_seconds,
            saving_seconds=saving_seconds,
            deadline_seconds=deadline_seconds,
            straggler_factor=straggler_factor,
        )
        self._watch: Watch | None = None
        self._calls = _Calls()
        # Keras 2 would convert the logs of each step to NumPy for this callback.
        self._supports_tf_logs = True
        watch_steps()

    def waiting_share(self) -> float | None:
        """Returns the share of the last seconds in which this worker waited for other workers, from 0 to 1.

        It is sampled beside the training. None while there are too few samples, and without other workers.
        """
        return None if self._watch is None else self._watch.waiting_share()

    def before_run(self, kind: str, code: CodeType) -> None:
        """Starts the watch with fit, evaluate or predict."""
        strategy = self.model.distribute_strategy
        if self._watch is None or self._watch.strategy is not strategy:
            self._watch = Watch(strategy, self._options)
        watch = self._watch
        if kind == "training" or not watch.is_inside():
            # Only evaluate and predict run within another call. An error has left the former one.
            self._calls.running.clear()
        if not self._calls.running:
            # The thread of a call that an error has left may still run.
            watch.stop()
            thread = threading.get_ident()
            watch.is_inside = lambda: runs(thread, code)
            watch.position.begin_fit() if kind == "training" else watch.position.begin_data()
            watch.start()
        else:
            watch.position.begin_data()
        self._calls.running.append(kind)

    def after_run(self, kind: str) -> None:
        """Ends the watch with the outermost call."""
        if self._watch is None or not self._calls.running:
            return
        self._calls.running.pop()
        if self._calls.running:
            self._watch.position.enter(SAVING)
        else:
            self._watch.stop()

    def before_epoch(self, epoch: int) -> None:
        """Begins an epoch."""
        self._calls.next_batch = 0
        if self._watch is not None:
            self._watch.position.begin_epoch(epoch)

    def after_steps(self, epoch: int) -> None:
        """Begins the end of an epoch, at which other callbacks save."""
        if self._watch is not None:
            self._watch.position.enter(SAVING)

    def before_step(self, kind: str, batch: int) -> None:
        """Begins a step."""
        if self._watch is not None:
            self._watch.position.begin_step(kind, batch)

    def after_step(self, kind: str, batch: int) -> None:
        """Ends a step."""
        if self._watch is None:
            return
        steps = 1
        if kind == "training":
            # With steps_per_execution, Keras calls the callbacks once for several steps.
            steps, self._calls.next_batch = batch + 1 - self._calls.next_batch, batch + 1
        self._watch.position.end_step(steps)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the options, without threads and sockets."""
        return {**self.__dict__, "_watch": None, "_calls": _Calls()}
