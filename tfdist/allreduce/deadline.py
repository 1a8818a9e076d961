"""SumDeadline: an error if a sum of gradients, or a wait for data, takes too long because of another worker.

TensorFlow notices a worker whose process has ended. It does not notice a worker that is alive but runs another part of
the program: the other workers wait for it for ever. TensorFlow's own timeout for collectives starts a thread for each
collective, and the thread sleeps for the whole timeout: after 500 sums of one tensor 1,000 threads were asleep. Here
each sum of gradients updates two counters, and one thread reads the counters. A worker that waits stores that it does,
so that the error can name the workers that do not wait.

Before each step, the workers add up how many of them have a batch. A worker whose pipeline delivers nothing keeps the
others waiting in this sum, which has counters of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.attendance import Attendance, describe
from tfdist.allreduce.per_replica import PerReplica
from tfdist.allreduce.streams import communicators_of

# A sum that waits for longer is stored for the other workers. Almost every sum ends sooner, which saves the call.
_ARRIVAL_SECONDS = 10.0
_FIRST_REPORT_SECONDS = 60.0
# The deadline of all operations of the native transport. It is later, since a SumDeadline knows what the others do.
_LATER, _LATER_SECONDS = 1.25, 1.0


class SumDeadline:
    """Aborts the collectives of this process if a sum of gradients takes longer than a deadline.

    The step that waits then raises an error that names the workers that take no part. Before, a line of the log names
    them after a minute, and again after ever longer times.

    Args:
        strategy: a strategy of several workers.
        timeout_seconds: how long a sum may wait for the other workers.
        poll_seconds: time between two reads of the counters; None for a twentieth of the timeout, at most 5 s.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, *, timeout_seconds: float, poll_seconds: float | None = None
    ) -> None:
        self.timeout_seconds = timeout_seconds
        self.attendance = Attendance(strategy)
        self._communicators = communicators_of(strategy)
        for communicator in self._communicators:
            communicator.timeout_seconds = _LATER * timeout_seconds + _LATER_SECONDS
        with strategy.scope():
            # Each replica's device has counters of its own, so that XLA can compile a step that updates them.
            self._begun = PerReplica(tf.zeros([], tf.int64), name="sums_begun")
            self._ended = PerReplica(tf.zeros([], tf.int64), name="sums_ended")
        with tf.device("CPU:0"):
            self._batches_begun = tf.Variable(0, trainable=False, dtype=tf.int64, name="batches_begun")
            self._batches_ended = tf.Variable(0, trainable=False, dtype=tf.int64, name="batches_ended")
        poll = min(timeout_seconds / 20, 5.0) if poll_seconds is None else poll_seconds
        thread = threading.Thread(target=_watch, args=(weakref.ref(self), poll), daemon=True, name="tfdist-deadline")
        thread.start()

    @contextlib.contextmanager
    def over(self, gradients: Sequence[Any], sums: list[Any]) -> Iterator[None]:
        """Counts the sum that the body traces as begun before it and as ended after it; called in replica context.

        Args:
            gradients: the gradients of this replica; the sum begins when the last one in the list is computed.
            sums: the list that the body fills with the sums; the sum ends when all of them are computed.
        """
        # The collectives do not depend on the counters, so that counting delays no sum.
        with tf.control_dependencies(_tensors(gradients)[-1:]):
            number = self._begun.read() + 1
            self._begun.assign(number)
        yield
        with tf.control_dependencies(_tensors(sums)):
            # Not one more than before: a step that failed has begun a sum that never ends.
            self._ended.assign(number)

    @contextlib.contextmanager
    def over_batch(self, own: Sequence[tf.Tensor], total: list[tf.Tensor]) -> Iterator[None]:
        """Counts the sum, over all workers, of the batches that are ready; called outside of replicas.

        Args:
            own: tensors of this worker that are computed when its own pipeline has delivered or ended.
            total: the list that the body fills with the sum.
        """
        with tf.control_dependencies(own):
            number = tf.convert_to_tensor(self._batches_begun.assign_add(1))
        yield
        with tf.control_dependencies(total):
            self._batches_ended.assign(number)

    def abort(self, what: str, whom: str) -> None:
        """Ends the collectives of this process with an error.

        Args:
            what: what a worker has not done, after "expected every worker".
            whom: the workers that are waited for.
        """
        from tensorflow.python.eager import context

        message = (
            f"expected every worker {what} within {self.timeout_seconds:g} s, waited for {whom}; "
            "find out in its log what it does instead, or raise timeout_seconds of AllReduceOptions."
        )
        for communicator in self._communicators:
            communicator.abort(tf.errors.DEADLINE_EXCEEDED, message)
        context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)

    def batches(self) -> tuple[int, int]:
        """Returns how many sums of the batches that are ready have begun and ended."""
        return int(self._batches_begun.numpy()), int(self._batches_ended.numpy())

    def counts(self) -> tuple[list[int], list[int]]:
        """Returns how many sums have begun and ended on each replica of this process; called outside of replicas."""
        begun, ended = ([int(value) for value in count.local_values()] for count in (self._begun, self._ended))
        return begun, ended


def deadline_of(strategy: tf.distribute.Strategy) -> SumDeadline | None:
    """Returns the deadline of a strategy's sums of gradients, if there is one."""
    return getattr(strategy, "_tfdist_deadline", None)


def within_deadline(gradients: Sequence[Any], sums: list[Any]) -> contextlib.AbstractContextManager[None]:
    """Returns a context for a sum of gradients; with several workers, the sum has the deadline of the strategy.

    Args:
        gradients: the gradients of this replica.
        sums: the list that the body fills with the sums.
    """
    deadline = deadline_of(tf.distribute.get_strategy())
    return contextlib.nullcontext() if deadline is None else deadline.over(gradients, sums)


def _tensors(gradients: Sequence[Any]) -> list[tf.Tensor]:
    # A gradient may be a variable in which a program has added gradients up.
    given = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients if g is not None]
    return [tf.convert_to_tensor(g) for g in given]


def _watch(reference: weakref.ref[SumDeadline], poll_seconds: float) -> None:
    seen: tuple[list[int], list[int]] | None = None
    since = time.monotonic()
    report_at = _FIRST_REPORT_SECONDS
    while True:
        time.sleep(poll_seconds)
        deadline = reference()
        if deadline is None:
            return
        begun, ended = deadline.counts()
        batches = deadline.batches()
        what = "to be ready for its next batch" if batches[0] != batches[1] else "to take part in a sum of gradients"
        begun, ended = [*begun, batches[0]], [*ended, batches[1]]
        waited = time.monotonic() - since
        if (begun, ended) != seen or begun == ended:
            seen, since, report_at = (begun, ended), time.monotonic(), _FIRST_REPORT_SECONDS
            deadline.attendance.leave()
        elif waited > deadline.timeout_seconds:
            deadline.abort(what, describe(deadline.attendance.look_up()))
            return
        elif waited > min(_ARRIVAL_SECONDS, deadline.timeout_seconds / 4):
            deadline.attendance.arrive(max(begun[:-1]) + batches[0])
            if waited > report_at:
                report_at = 2 * waited
                whom = describe(deadline.attendance.look_up())
                waits = "the next batch" if batches[0] != batches[1] else "a sum of gradients"
                get_logger().warning("%s has waited %.0f s for %s", waits, waited, whom)
        del deadline
