"""Watch: says why a training makes no step, and ends the job if it does not go on."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.watch.frames import is_debugged, position_in_pipeline, position_of
from tfdist.watch.mesh_of import mesh_of, worker_addresses
from tfdist.watch.options import WatchOptions, given_options
from tfdist.watch.phases import EVALUATION, FIRST_BATCH, OUTSIDE, SAVING, STEPS, TRACING, TRAINING
from tfdist.watch.position import Position, Where
from tfdist.watch.probes import Probes
from tfdist.watch.record import Received, Record
from tfdist.watch.requests import Requests
from tfdist.watch.restart_on_loss import restart_on_loss
from tfdist.watch.samples import Samples
from tfdist.watch.sentences import because, report, unheard_sentence
from tfdist.watch.stacks import NativeWatchdog, dump_stacks
from tfdist.watch.stall import Stall, judge
from tfdist.watch.standing import PROBE_SECONDS, SERVES, SILENT_SECONDS, Standing
from tfdist.watch.straggler import find_straggler, straggler_sentence
from tfdist.watch.traces import Traces
from tfdist.watch.waiting import Waiting

_TICK_SECONDS = 0.25
_JUDGE_SECONDS = 1.0
# This thread is late by more only if the whole process was kept from running: by a machine that stood still, or by
# native code or garbage collection that held the interpreter lock.
_LATE_SECONDS = 1.0
# After a pause of this process, until the records of the other workers have come again.
_SETTLE_SECONDS = 3.0
_STRAGGLER_AGAIN_SECONDS = 300.0
# Samples of a step that takes this many times the usual duration are not those of a straggler.
_UNUSUAL = 3.0


class Watch:
    """Watches a training loop: says why there is no step, with the stacks of all workers, and then ends the job.

    All workers make the watch at the same place of the program, and count the same steps.

    Args:
        strategy: the strategy of the training.
        options: how long each phase may take, and how long a stall may last.

    Example:
        >>> import tfdist
        >>> from tfdist.watch import Watch
        >>> with Watch(tfdist.create_strategy("one_device")) as watch:
        ...     for batch in range(3):
        ...         watch.step()
        ...     with watch.phase("saving"):
        ...         pass
    """

    def __init__(self, strategy: tf.distribute.Strategy, options: WatchOptions | None = None) -> None:
        self.strategy = strategy
        self._options = given_options(options)
        self._mesh = mesh_of(strategy)
        self._requests = Requests.of(self._mesh)
        self._received = Received(
            worker_addresses(strategy),
            longest_limit=max(self._options.of(phase) for phase in (TRACING, FIRST_BATCH, SAVING)),
        )
        # The workers of which the log says that none of their records has come.
        self._unheard: set[int] = set()
        self._probes = Probes(worker_addresses(strategy))
        self._waiting = Waiting(strategy)
        self._samples = Samples()
        self._native = NativeWatchdog()
        self.position = Position()
        self._trainer = threading.get_ident()
        self._traces = Traces(self._trainer)
        # Whether the training is still in the call in which the watch was started.
        self.is_inside: Callable[[], bool] = lambda: True
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The kinds of the verdicts that were reported in this stall, and when the stall was reported first.
        self._reported: set[tuple] = set()
        self._stalled_at: float | None = None
        # How many steps had begun then.
        self._stalled_number = 0
        self._straggler_at = -_STRAGGLER_AGAIN_SECONDS

    def __enter__(self) -> Watch:
        self.position.begin_step(TRAINING, 0)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def step(self) -> None:
        """Tells the watch that a step has ended and the next one begins."""
        self.position.end_step()
        self.position.begin_next()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Gives the body the limit of another phase than a training step.

        Args:
            name: "saving", "evaluation" or "tracing".

        Raises:
            ValueError: if the name is not one of these.
        """
        if name not in (SAVING, EVALUATION, TRACING):
            raise ValueError(f"expected the phase saving, evaluation or tracing, received {name!r}.")
        self.position.enter(SAVING if name == EVALUATION else name)
        try:
            yield
        finally:
            self.position.begin_next()

    def waiting_share(self) -> float | None:
        """Returns the share of the last seconds in which this worker waited for others; None while it is not known."""
        shares = self._samples.shares()
        return None if shares is None else shares.waiting

    def start(self) -> None:
        """Starts the thread that judges; called in the thread that trains."""
        self._trainer = threading.get_ident()
        self._traces = Traces(self._trainer)
        if self._thread is not None and self._thread.is_alive() and not self._stop.is_set():
            return
        if self._mesh.size > 1:
            restart_on_loss().begin()
        # At once: a worker that is stopped before the first tick is named with its process, too.
        self._publish(self.position.where(), waits=None, counts_batches=False, urgent=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), daemon=True, name="tfdist-watch")
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread: the program no longer trains."""
        self.position.enter(OUTSIDE)
        if self._thread is None:
            return
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self, stop: threading.Event) -> None:
        judge_at = last = time.monotonic()
        # Steps of the same length as the pauses would always be seen at the same point.
        # Not the generator of the program, by which fit may shuffle its data.
        own = random.Random()
        while not stop.wait(_TICK_SECONDS * own.uniform(0.5, 1.5)):
            try:
                now = time.monotonic()
                if now - last > SILENT_SECONDS:
                    self._paused(now - last)
                    judge_at = now + _SETTLE_SECONDS
                elif now - last > _LATE_SECONDS:
                    self.position.skip(now - last)
                last = now
                self._tick(now, judge=now >= judge_at)
                if now >= judge_at:
                    judge_at = now + _JUDGE_SECONDS
            except Exception:
                get_logger().exception("the watch beside the training failed, and goes on")
                judge_at = time.monotonic() + 60.0
        self._native.cancel()
        # The last record says that this worker is outside of fit.
        self._publish(self.position.where(), waits=None, counts_batches=False)

    def _tick(self, began: float, *, judge: bool) -> None:
        where = self.position.where()
        if where.phase != OUTSIDE and not self.is_inside():
            # An error has left fit.
            self.position.enter(OUTSIDE)
            self._stop.set()
            return
        if is_debugged(self._trainer):
            # A person looks at the program, on this worker alone: the other workers wait without a stall, too.
            self._samples.clear()
            self.position.restart_clock()
            where = self.position.where()
        if self._traces.seen(step=where.number) and where.phase in (*STEPS, FIRST_BATCH):
            self.position.mark_traced()
            where = self.position.where()
        waits, counts_batches = self._waiting.now()
        if where.seconds < 1 + _UNUSUAL * (where.usual_step_seconds or 0.0):
            # A worker that was late once is no straggler.
            self._samples.add(where.phase, waits)
        own = self._publish(where, waits=waits, counts_batches=counts_batches)
        self._native.postpone(own.limit)
        if judge and time.monotonic() - began < _LATE_SECONDS:
            self._judge(own, where)

    def _publish(self, where: Where, *, waits: str | None, counts_batches: bool, urgent: bool = False) -> Standing:
        shares = self._samples.shares()
        is_slow = where.seconds > 1
        record = Record(
            phase=where.phase,
            seconds=round(where.seconds, 2),
            limit=round(self._options.of(where.phase, usual_seconds=where.usual_seconds), 2),
            step=where.step,
            epoch=where.epoch,
            batch=where.batch,
            waits=waits,
            counts_batches=counts_batches,
            at=position_of(self._trainer),
            data_thread=position_in_pipeline(self._trainer) if is_slow else "",
            number=where.number,
            share_batch=None if shares is None else shares.batch,
            share_sum=None if shares is None else shares.sum,
            share_callbacks=None if shares is None else shares.callbacks,
        )
        self._mesh.publish(urgent=urgent, **record.to_fields())
        fields = {field.name for field in dataclasses.fields(Standing)}
        known = {name: value for name, value in vars(record).items() if name in fields}
        return Standing(**{**known, "worker": self._mesh.worker, "seconds": where.seconds})

    def _judge(self, own: Standing, where: Where) -> None:
        states = self._mesh.states()
        found = [self._received.standing(worker, state, own=own) for worker, state in enumerate(states)]
        standings = [own if one.worker == own.worker else one for one, _ in found]
        for i, one in enumerate(standings):
            if one.silent_seconds > PROBE_SECONDS:
                reply = self._probes.reply(one.worker, silent_seconds=one.silent_seconds)
                standings[i] = dataclasses.replace(one, reply=reply)
            if not one.is_heard and standings[i].reply == SERVES and one.worker not in self._unheard:
                self._unheard.add(one.worker)
                get_logger().warning("%s", unheard_sentence(standings[i]))
        stall = judge(standings, own=own.worker)
        # Two steps have begun since the report: this worker does not wait for what was reported.
        goes_on = self._stalled_at is not None and where.number >= self._stalled_number + 2
        if stall is None or (goes_on and stall.is_decided):
            self._no_stall()
        elif stall.is_decided:
            self._stall(stall, where)
        straggler = find_straggler(
            [record.shares if record is not None and one.is_fresh else None for one, record in found],
            factor=self._options.straggler_factor,
        )
        now = time.monotonic()
        if straggler is not None and now > self._straggler_at + _STRAGGLER_AGAIN_SECONDS:
            self._straggler_at = now
            if self._mesh.worker in (0, straggler.worker):
                get_logger().warning("%s", straggler_sentence(straggler))

    def _stall(self, stall: Stall, where: Where) -> None:
        now = time.monotonic()
        is_new = self._stalled_at is None
        if self._stalled_at is None:
            self._stalled_at, self._stalled_number = now, where.number
        deadline = self._options.deadline_seconds
        remaining = None if deadline is None else self._stalled_at + deadline - now
        kinds = tuple(verdict.kind for verdict in stall.verdicts)
        if kinds not in self._reported:
            self._reported.add(kinds)
            lines = report(
                stall,
                own=self._mesh.worker,
                usual_step_seconds=where.usual_step_seconds,
                deadline_seconds=None if remaining is None else max(remaining, 0.0),
            )
            get_logger().warning("%s", lines)
            restart_on_loss().expect(because(stall))
        if is_new:
            self._requests.dump_everywhere()
        if remaining is not None and remaining <= 0:
            self._requests.end_everywhere(because(stall))

    def _no_stall(self) -> None:
        if self._stalled_at is not None:
            seconds = time.monotonic() - self._stalled_at
            get_logger().warning("the training goes on, %.0f s after the stall was reported", seconds)
            self._stalled_at = None
            self._reported.clear()
            restart_on_loss().forget()

    def _paused(self, seconds: float) -> None:
        """Counts no time in which this process did not run itself."""
        self._samples.clear()
        self.position.restart_clock()
        if self._stalled_at is not None:
            restart_on_loss().forget()
        self._stalled_at = None
        self._reported.clear()
        dump_stacks(
            f"it has not run for {seconds:.0f} s: it was stopped, or native code held the global interpreter lock"
        )
