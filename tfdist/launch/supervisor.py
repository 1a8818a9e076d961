"""Starts the ranks of a job, watches over them, and leaves none behind."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TextIO

from tfdist.launch import policy, report
from tfdist.launch.command import check_command
from tfdist.launch.environment import available_cores, rank_env, thread_share
from tfdist.launch.guard import Guard
from tfdist.launch.output import Console
from tfdist.launch.ports import PortHold
from tfdist.launch.process import RankProcess
from tfdist.launch.report import RankExit
from tfdist.launch.spec import LaunchSpec, Rank
from tfdist.launch.sweep import sweep

TIMEOUT_CODE = 124
UNKILLABLE_SECONDS = 10.0
OUTPUT_SECONDS = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How a job ended.

    Args:
        exit_code: 0 for success, else that of the rank that failed first, 128 + signal, or 124 for a timeout.
        first_failure: The rank that failed first, if one did.
        exits: How the ranks ended, in that order.
        log_dir: Where the log files are.
        seconds: How long the job took.
    """

    exit_code: int
    first_failure: RankExit | None
    exits: tuple[RankExit, ...]
    log_dir: Path
    seconds: float


def launch(spec: LaunchSpec, *, out: TextIO | None = None, err: TextIO | None = None) -> LaunchResult:
    """Runs a job and returns when all of its processes are gone.

    Call it on the main thread: only there can it pass on signals.

    Args:
        spec: What to run.
        out: Where the output of the ranks goes; sys.stdout if None.
        err: Where the launcher's own lines go; sys.stderr if None.

    Returns:
        How it ended; a failed rank is not an exception.

    Raises:
        CommandError: If the command cannot be executed.
        ValueError: If the host is not this machine, a wanted port is taken, or logs cannot be written.
        OSError: If the system has no resources for more processes.
    """
    check_command(spec)
    with PortHold(spec.cluster_ranks, host=spec.host, port_base=spec.port_base) as hold:
        console = Console.on(out or sys.stdout, show_info=spec.show_info)
        return _Job(spec, hold, console, err or sys.stderr).run()


class _Job:
    """The state of one job. Everything here happens on one thread; the ranks' threads only put events into a queue."""

    def __init__(self, spec: LaunchSpec, hold: PortHold, console: Console, err: TextIO) -> None:
        self._spec = spec
        self._hold = hold
        self._console = console
        self._err = err
        self._id = uuid.uuid4().hex
        self._ranks = spec.ranks
        self._log_dir = spec.log_dir or Path("tfdist-logs", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        self._processes: dict[Rank, RankProcess] = {}
        # Its put is reentrant, so that a signal handler may call it.
        self._events: queue.SimpleQueue[RankExit | int] = queue.SimpleQueue()
        self._exits: list[RankExit] = []
        self._exit_code: int | None = None
        self._first: RankExit | None = None
        self._overdue: list[Rank] = []
        self._wind_down_at: dict[Rank, float] = {}
        self._hurry = False
        self._start = time.monotonic()

    def run(self) -> LaunchResult:
        share = thread_share(self._ranks, cores=available_cores(), requested=self._spec.threads_per_rank)
        _make_log_dir(self._log_dir)
        with self._passing_on_signals():
            guard = Guard(self._id, grace_seconds=self._spec.grace_seconds)
            try:
                self._start_ranks(guard, share)
                self._watch()
            except BaseException:
                self._hurry = True
                raise
            finally:
                left = self._clean_up()
                guard.done()
        return self._conclude(left)

    def _start_ranks(self, guard: Guard, share: int) -> None:
        if self._spec.adds_chief:
            self._say("--ps needs a coordinator, so a chief is added")
        ports = self._hold.ports
        self._say(report.header(self._ranks, ports, host=self._spec.host, share=share, log_dir=self._log_dir))
        self._hold.release_if_needed()
        self._start = time.monotonic()
        for rank in self._ranks:
            env = rank_env(rank, self._spec, ports=ports, share=share, launch_id=self._id, base=os.environ)
            process = RankProcess(rank, self._spec.argv, env, log=self._log_dir / rank.log_name)
            self._processes[rank] = process
            guard.add(process.group)
        for number, process in enumerate(self._processes.values()):
            process.watch(self._console, number, self._on_exit)

    def _on_exit(self, process: RankProcess, code: int, now: float) -> None:
        told = process.told_at is not None and process.told_at <= now
        self._events.put(RankExit(rank=process.rank, code=code, seconds=now - self._start, told=told))

    def _running(self) -> list[RankProcess]:
        return [process for process in self._processes.values() if not process.ended]

    def _watch(self) -> None:
        give_up_at = float("inf")
        while self._running():
            self._take_events()
            self._decide()
            now = time.monotonic()
            for process in self._running():
                if self._hurry or process.kill_at <= now:
                    process.kill()
                    give_up_at = min(give_up_at, now + UNKILLABLE_SECONDS)
            if now >= give_up_at:
                return  # It hangs in the kernel; the clean-up says which process is left.

    def _next_deadline(self) -> float:
        deadlines = [process.kill_at for process in self._running()]
        deadlines += [at for rank, at in self._wind_down_at.items() if not self._processes[rank].ended]
        if self._exit_code is None and self._spec.timeout_seconds is not None:
            deadlines.append(self._start + self._spec.timeout_seconds)
        return min(deadlines, default=float("inf"))

    def _take_events(self) -> None:
        """Waits for the next event or deadline, and takes all events that are there."""
        # A bounded wait, so that a killed process which does not end cannot keep the loop for ever.
        wait = min(max(0.0, self._next_deadline() - time.monotonic()), 1.0)
        try:
            event = self._events.get(timeout=wait) if wait else self._events.get_nowait()
            while True:
                self._take(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _take(self, event: RankExit | int) -> None:
        if isinstance(event, RankExit):
            self._processes[event.rank].ended = True
            self._exits.append(event)
            return
        running, note = self._running(), ""
        if self._exit_code is None:
            self._exit_code = 128 + event
            note = f"received {report.signal_name(event)}, passing it on to {_names(running)}"
        elif event == signal.SIGINT:
            self._hurry = True
            self._say(f"killing {_names(running)}" if running else "killing what is left")
            return
        for process in running:
            process.tell(event, grace_seconds=self._spec.grace_seconds)
        if note and running:
            self._say(note)

    def _decide(self) -> None:
        if self._exit_code is not None:
            return
        now = time.monotonic()
        self._first = policy.first_failure(self._ranks, self._exits)
        if self._first is not None:
            self._exit_code = self._first.shell_code
            self._end_failed_job(self._first)
        elif self._spec.timeout_seconds is not None and now - self._start >= self._spec.timeout_seconds:
            self._exit_code = TIMEOUT_CODE
            self._overdue = [process.rank for process in self._running()]
            self._end(self._overdue)
        else:
            self._wind_down(now)

    def _end_failed_job(self, first: RankExit) -> None:
        running = self._running()
        for process in running:
            process.hidden = True
        self._end([process.rank for process in running])
        # Told first, printed after: a terminal that is paused must not keep the others alive.
        if running:
            when = f"{first.seconds:.1f} s after the start"
            self._say(f"{first.rank.label} failed ({first.how}, {when}); ending {_names(running)}")

    def _wind_down(self, now: float) -> None:
        for rank in policy.winding_down(self._ranks, self._exits):
            process = self._processes[rank]
            if rank not in self._wind_down_at:
                evaluator = rank.role == "evaluator"
                grace = self._spec.evaluator_grace_seconds if evaluator else self._spec.grace_seconds
                self._wind_down_at[rank] = now + grace
            elif self._wind_down_at[rank] <= now:
                self._wind_down_at[rank] = float("inf")
                process.hidden = True
                self._end([rank])

    def _end(self, ranks: list[Rank]) -> None:
        for rank in ranks:
            self._processes[rank].tell(signal.SIGTERM, grace_seconds=self._spec.grace_seconds)

    def _clean_up(self) -> list[int]:
        groups = {process.group for process in self._processes.values()}
        if self._hurry:
            for process in self._processes.values():
                process.kill()
        left = sweep(groups, self._id, grace_seconds=self._spec.grace_seconds, hurry=self._hurried)
        for process in self._processes.values():
            process.finish(OUTPUT_SECONDS)
        return left

    def _hurried(self) -> bool:
        while not self._events.empty():
            self._take(self._events.get_nowait())
        return self._hurry

    def _conclude(self, left: list[int]) -> LaunchResult:
        seconds = time.monotonic() - self._start
        exits = tuple(sorted(self._exits, key=lambda item: item.seconds))
        code = self._exit_code or 0
        if left:
            self._say(f"processes {', '.join(map(str, left))} could not be killed")
            code = code or 1
        if self._first is not None:
            log = self._log_dir / self._first.rank.log_name
            tail = self._processes[self._first.rank].tail.lines
            self._say(report.failure(self._first, exits, tail=tail, log=log, tracebacks=self._tracebacks()))
        elif self._overdue:
            self._say(
                f"the deadline of {self._spec.timeout_seconds:g} s has passed; "
                f"still running were {report.names(self._overdue)}"
            )
        elif code > 128:
            self._say(f"ended by {report.signal_name(code - 128)} after {seconds:.1f} s")
        elif not code:
            self._say(report.success(self._ranks, exits, seconds=seconds))
        self._say(f"logs in {self._log_dir}")
        return LaunchResult(
            exit_code=code, first_failure=self._first, exits=exits, log_dir=self._log_dir, seconds=seconds
        )

    def _tracebacks(self) -> dict[Rank, float]:
        times = {rank: process.tail.traceback_at for rank, process in self._processes.items()}
        return {rank: at - self._start for rank, at in times.items() if at is not None}

    def _say(self, text: str) -> None:
        try:
            self._err.write(f"tfdist launch: {text}\n")
            self._err.flush()
        except (OSError, ValueError):
            pass  # The terminal is gone; that is no reason to leave processes behind.

    @contextmanager
    def _passing_on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def pass_on(number: int, frame: FrameType | None) -> None:
            self._events.put(number)

        before = {}
        for number in _SIGNALS:
            # `nohup` ignores SIGHUP for the whole job, and that is to stay so.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, pass_on)
        try:
            yield
        finally:
            for number, handler in before.items():
                # None stands for a handler that wasn't installed by Python, and cannot be.
                signal.signal(number, handler or signal.SIG_DFL)


def _names(processes: list[RankProcess]) -> str:
    return report.names([process.rank for process in processes])


def _make_log_dir(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise ValueError(
            f"expected --log-dir to be a directory that can be written, received {str(path)!r}; choose another one."
        )
