"""Preemption: on a signal to any worker, all workers agree on a step, write a snapshot, and exit with code 75.

The workers agree as follows. A worker that learns of the signal says after which batch its main thread will wait: the
batch that it is computing. All workers go on to the last of these batches, which no worker can have passed, and take
the snapshot after it. A worker without steps that could be lost says so. If no worker has any, they all exit at once,
even if their main threads wait inside TensorFlow. After a deadline a worker exits without a snapshot.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.checkpoint.signals import call_on_signals, signal_numbers
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.watch.mesh import Mesh, WorkerState
from tfdist.watch.mesh_of import mesh_of

_WAITS_AFTER, _IS_DONE = "preempted_after", "preempted_done"
_POLL_SECONDS = 0.02
# What a worker says that has no steps that could be lost.
NOTHING_TO_SAVE = -1


def decide(waits_after: Sequence[int | None]) -> int | None:
    """Returns the number of the batch after which all workers take a snapshot.

    Args:
        waits_after: for each worker, the number of the batch after which its main thread waits, NOTHING_TO_SAVE, or
            None if it has not said anything yet.

    Returns:
        The number of the batch; NOTHING_TO_SAVE if no worker needs a snapshot; None if that is not known yet.

    Example:
        >>> from tfdist.checkpoint.preemption import decide
        >>> decide([7, None]), decide([7, 8]), decide([-1, -1])
        (None, 8, -1)
    """
    known = [number for number in waits_after if number is not None]
    return max(known) if len(known) == len(waits_after) else None


class Preemption:
    """Ends a training on a signal.

    Args:
        signals: names of the signals.
        seconds: how long the workers may take from the signal to the exit.

    Raises:
        ValueError: if an option has no meaning.
    """

    def __init__(self, signals: Sequence[str], *, seconds: float) -> None:
        signal_numbers(signals)
        if not seconds > 0:
            raise ValueError(f"expected preemption_seconds to be more than 0, received {seconds}.")
        self._seconds = seconds
        self._guard = threading.Lock()
        self._mesh: Mesh | None = None
        self._flush: Callable[[float], Any] = lambda seconds: None
        self._batches = 0
        self._has_steps = False
        self._requested_at: float | None = None
        if signals:
            call_on_signals(signals, _on_signal)

    @property
    def is_requested(self) -> bool:
        """Whether this worker knows of a signal."""
        return self._requested_at is not None

    def watch(self, strategy: tf.distribute.Strategy, *, flush: Callable[[float], Any]) -> None:
        """Begins to watch a training; called by all workers.

        Args:
            strategy: strategy of the training.
            flush: waits for the end of a snapshot that is being written, for at most so many seconds.
        """
        global _current
        mesh, self._flush = mesh_of(strategy), flush
        if mesh is not self._mesh:
            self._mesh = mesh
            mesh.on_change(self._on_change)
        _current = self
        # Another worker may have received the signal before this one began to listen.
        if any(state is not None and _WAITS_AFTER in state.fields for state in mesh.states()):
            self._request("")

    def _on_change(self, state: WorkerState) -> None:
        # The mesh has one record for all trainings of the program: one that has ended must not answer for another.
        if _WAITS_AFTER in state.fields and _current in (None, self):
            self._request("")

    def stop_watching(self) -> None:
        """Says that all steps are on the disk."""
        global _current, _former
        with self._guard:
            self._has_steps = False
            if not self.is_requested:
                _current, _former = None, self

    def leave_after_training(self, name: str) -> None:
        """Ends this process and asks the other workers to do the same, while none of them has steps to lose.

        Args:
            name: name of the signal that this worker has received.
        """
        assert self._mesh is not None
        with self._guard:
            if self.is_requested:
                # Another worker has received a signal, too, and all are leaving.
                return
            self._requested_at = time.monotonic()
        self._mesh.publish_last(**{_WAITS_AFTER: NOTHING_TO_SAVE, _IS_DONE: True})
        _exit(f"received {name}, and no step is lost")

    def is_now(self) -> bool:
        """Counts a batch, and returns whether a snapshot is to be taken after it; may wait for other workers."""
        with self._guard:
            self._batches += 1
            if not self.is_requested:
                self._has_steps = True
                return False
        # The thread ends the process at the deadline.
        while (last := self._decision()) is None or last == NOTHING_TO_SAVE:
            time.sleep(_POLL_SECONDS)
        return self._batches >= last

    def leave(self, state: str) -> None:
        """Waits until the other workers have written their parts, and exits.

        Args:
            state: what has become of the training, for the log.

        Raises:
            SystemExit: always, with code 75.
        """
        assert self._mesh is not None
        self._mesh.publish(urgent=True, **{_IS_DONE: True})
        while not all(self._of_workers(_IS_DONE)):
            time.sleep(_POLL_SECONDS)
        get_logger().warning("the training is interrupted: %s; exit code %d", state, RESTART_CODE)
        self._mesh.close()
        raise SystemExit(RESTART_CODE)

    def _request(self, name: str) -> None:
        """Notes that a worker has received a signal; called in a thread."""
        with self._guard:
            if self.is_requested:
                return
            self._requested_at = time.monotonic()
            waits_after = self._batches + 1 if self._has_steps else NOTHING_TO_SAVE
            assert self._mesh is not None
            self._mesh.publish(urgent=True, **{_WAITS_AFTER: waits_after})
        get_logger().warning("received %s: ending the training", name or "the signal of another worker")
        threading.Thread(target=self._end, args=(waits_after,), daemon=True, name="tfdist-preemption").start()

    def _end(self, waits_after: int) -> None:
        """Exits if no worker has anything to save, or else at the deadline."""
        assert self._requested_at is not None and self._mesh is not None
        deadline = self._requested_at + self._seconds
        while time.monotonic() < deadline:
            others_are_done = all(
                number == NOTHING_TO_SAVE or done
                for number, done in zip(self._of_workers(_WAITS_AFTER), self._of_workers(_IS_DONE), strict=True)
            )
            if self._decision() is not None and waits_after == NOTHING_TO_SAVE and others_are_done:
                self._flush(max(0.0, deadline - time.monotonic()))
                self._mesh.publish(urgent=True, **{_IS_DONE: True})
                _exit("no step is lost")
            time.sleep(_POLL_SECONDS)
        missing = [f"worker {worker}" for worker, number in enumerate(self._of_workers(_WAITS_AFTER)) if number is None]
        of = f", and {' and '.join(missing)} did not answer" if missing else ""
        _exit(f"no snapshot was written within {self._seconds:g} s{of}; the newest one before is used")

    def _decision(self) -> int | None:
        return decide(self._of_workers(_WAITS_AFTER))

    def _of_workers(self, field: str) -> list[Any]:
        assert self._mesh is not None
        return [None if state is None else state.fields.get(field) for state in self._mesh.states()]


# The training that is being watched.
_current: Preemption | None = None
# The last training that has ended: its workers may evaluate, or save the model.
_former: Preemption | None = None


def _on_signal(name: str) -> None:
    current, former = _current, _former
    if current is not None:
        current._request(name)
    elif former is not None:
        former.leave_after_training(name)
    else:
        _exit(f"received {name}, and no step is lost")


def _exit(state: str) -> None:
    get_logger().warning("the training is interrupted: %s; exit code %d", state, RESTART_CODE)
    sys.stdout.flush()
    sys.stderr.flush()
    # The main thread may wait inside TensorFlow, where no exception reaches it.
    os._exit(RESTART_CODE)
