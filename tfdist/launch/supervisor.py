"""Starts the tasks of a run, watches over them, and ends all of their processes."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
import uuid
from collections.abc import Iterable
from typing import TextIO

from tfdist.cluster import Task
from tfdist.launch import policy, report
from tfdist.launch.command import check_command
from tfdist.launch.environment import available_cores, task_env, thread_share
from tfdist.launch.guard import Guard
from tfdist.launch.log_files import default_log_dir, log_name, make_log_dir
from tfdist.launch.output import Console
from tfdist.launch.ports import PortHold
from tfdist.launch.process import TaskProcess
from tfdist.launch.result import LaunchResult, TaskExit
from tfdist.launch.signals import forward_signals, signal_name
from tfdist.launch.spec import LaunchSpec
from tfdist.launch.sweep import sweep

TIMEOUT_CODE = 124
UNKILLABLE_SECONDS = 10.0
OUTPUT_SECONDS = 3.0


def launch(spec: LaunchSpec, *, out: TextIO | None = None, err: TextIO | None = None) -> LaunchResult:
    """Starts the tasks, and returns when all of their processes have ended.

    Call this function on the main thread: on another thread it cannot pass signals on to the tasks.

    Args:
        spec: the tasks to start, and their command.
        out: where the output of the tasks goes; None is sys.stdout.
        err: where the launcher's own lines go; None is sys.stderr.

    Returns:
        How the run ended. The failure of a task does not raise an exception.

    Raises:
        CommandError: if the command cannot be executed.
        ValueError: if the host is not this machine, a requested port is taken, or logs cannot be written.
        OSError: if the system has no resources for more processes.

    Example:
        >>> import io, sys, tempfile
        >>> from pathlib import Path
        >>> from tfdist.launch import LaunchSpec, launch
        >>> program = "import json, os; print(json.loads(os.environ['TF_CONFIG'])['task'])"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spec = LaunchSpec(command=(sys.executable, "-c", program), log_dir=Path(folder))
        ...     result = launch(spec, out=sys.stdout, err=io.StringIO())
        [worker 0] {'type': 'worker', 'index': 0}
        >>> result.exit_code
        0
    """
    check_command(spec)
    with PortHold(spec.cluster_tasks, host=spec.host, port_base=spec.port_base) as hold:
        console = Console.on(out or sys.stdout, show_info=spec.show_info)
        return _Run(spec, hold, console, err or sys.stderr).run()


class _Run:
    """The state of one run. All methods run on one thread; the threads of the tasks only put events into a queue."""

    def __init__(self, spec: LaunchSpec, hold: PortHold, console: Console, err: TextIO) -> None:
        self._spec = spec
        self._hold = hold
        self._console = console
        self._err = err
        self._launch_id = uuid.uuid4().hex
        self._tasks = spec.tasks
        self._log_dir = spec.log_dir or default_log_dir()
        self._processes: dict[Task, TaskProcess] = {}
        # SimpleQueue.put is reentrant, so that a signal handler may call it. An int is the number of a received signal.
        self._events: queue.SimpleQueue[TaskExit | int] = queue.SimpleQueue()
        self._exits: list[TaskExit] = []
        self._exit_code: int | None = None
        self._first_failure: TaskExit | None = None
        self._overdue: list[Task] = []
        # When the launcher ends each task that the run no longer needs, unless the task has ended by itself.
        self._end_unneeded_at: dict[Task, float] = {}
        self._kill_now = False
        self._start = time.monotonic()

    def run(self) -> LaunchResult:
        share = thread_share(self._tasks, cores=available_cores(), requested=self._spec.threads_per_task)
        make_log_dir(self._log_dir)
        with forward_signals(self._events.put):
            guard = Guard(self._launch_id, grace_seconds=self._spec.grace_seconds)
            try:
                self._start_tasks(guard, share)
                self._watch()
            except BaseException:
                self._kill_now = True
                raise
            finally:
                unkillable = self._clean_up()
                guard.dismiss()
        return self._conclude(unkillable)

    def _start_tasks(self, guard: Guard, share: int) -> None:
        if self._spec.adds_chief:
            self._write_line("--ps needs a coordinator, so a chief is added")
        ports = self._hold.ports
        self._write_line(report.header(self._tasks, ports, host=self._spec.host, share=share, log_dir=self._log_dir))
        self._hold.release_if_needed()
        self._start = time.monotonic()
        for task in self._tasks:
            env = task_env(task, self._spec, ports=ports, share=share, launch_id=self._launch_id, base=os.environ)
            process = TaskProcess(task, self._spec.argv, env, log=self._log_dir / log_name(task))
            self._processes[task] = process
            guard.add(process.group)
        for number, process in enumerate(self._processes.values()):
            process.watch(self._console, number, self._on_exit)

    def _on_exit(self, process: TaskProcess, code: int, now: float) -> None:
        signalled = process.signalled_at is not None and process.signalled_at <= now
        self._events.put(TaskExit(task=process.task, code=code, seconds=now - self._start, signalled=signalled))

    def _running(self) -> list[TaskProcess]:
        return [process for process in self._processes.values() if not process.ended]

    def _watch(self) -> None:
        give_up_at = float("inf")
        while self._running():
            self._wait_for_events()
            self._decide()
            now = time.monotonic()
            for process in self._running():
                if self._kill_now or process.kill_at <= now:
                    process.kill()
                    give_up_at = min(give_up_at, now + UNKILLABLE_SECONDS)
            if now >= give_up_at:
                return  # The process hangs in the kernel; the clean-up reports its number.

    def _next_deadline(self) -> float:
        deadlines = [process.kill_at for process in self._running()]
        deadlines += [at for task, at in self._end_unneeded_at.items() if not self._processes[task].ended]
        if self._exit_code is None and self._spec.timeout_seconds is not None:
            deadlines.append(self._start + self._spec.timeout_seconds)
        return min(deadlines, default=float("inf"))

    def _wait_for_events(self) -> None:
        """Waits for the next event or deadline, and handles all events that have arrived."""
        # The wait is bounded, so that a killed process which does not end cannot block the loop for ever.
        wait = min(max(0.0, self._next_deadline() - time.monotonic()), 1.0)
        try:
            event = self._events.get(timeout=wait) if wait else self._events.get_nowait()
            while True:
                self._handle(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _handle(self, event: TaskExit | int) -> None:
        if isinstance(event, TaskExit):
            self._processes[event.task].ended = True
            self._exits.append(event)
            return
        running, line = self._running(), ""
        if self._exit_code is None:
            self._exit_code = 128 + event
            line = f"received {signal_name(event)}, passing it on to {_names(running)}"
        elif event == signal.SIGINT:
            self._kill_now = True
            self._write_line(f"killing {_names(running) if running else 'the remaining processes'}")
            return
        for process in running:
            process.end(event, grace_seconds=self._spec.grace_seconds)
        if line and running:
            self._write_line(line)

    def _decide(self) -> None:
        if self._exit_code is not None:
            return
        now = time.monotonic()
        self._first_failure = policy.first_failure(self._tasks, self._exits)
        if self._first_failure is not None:
            self._exit_code = self._first_failure.shell_code
            self._end_failed_run(self._first_failure)
        elif self._spec.timeout_seconds is not None and now - self._start >= self._spec.timeout_seconds:
            self._exit_code = TIMEOUT_CODE
            self._overdue = [process.task for process in self._running()]
            self._end(self._overdue)
        else:
            self._end_unneeded_tasks(now)

    def _end_failed_run(self, first: TaskExit) -> None:
        running = self._running()
        for process in running:
            process.hidden = True
        self._end([process.task for process in running])
        # The tasks are ended before the line is written: a terminal that is paused must not keep them running.
        if running:
            when = f"{first.seconds:.1f} s after the start"
            self._write_line(f"{first.task.name} failed ({first.how}, {when}); ending {_names(running)}")

    def _end_unneeded_tasks(self, now: float) -> None:
        for task in policy.unneeded_tasks(self._tasks, self._exits):
            if task not in self._end_unneeded_at:
                is_evaluator = task.job == "evaluator"
                grace = self._spec.evaluator_grace_seconds if is_evaluator else self._spec.grace_seconds
                self._end_unneeded_at[task] = now + grace
            elif self._end_unneeded_at[task] <= now:
                self._end_unneeded_at[task] = float("inf")
                self._processes[task].hidden = True
                self._end([task])

    def _end(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._processes[task].end(signal.SIGTERM, grace_seconds=self._spec.grace_seconds)

    def _clean_up(self) -> list[int]:
        """Ends the processes that the tasks have started, and returns the numbers of processes that do not end."""
        groups = {process.group for process in self._processes.values()}
        if self._kill_now:
            for process in self._processes.values():
                process.kill()
        unkillable = sweep(
            groups, self._launch_id, grace_seconds=self._spec.grace_seconds, kill_now=self._is_to_be_killed_now
        )
        for process in self._processes.values():
            process.finish(OUTPUT_SECONDS)
        return unkillable

    def _is_to_be_killed_now(self) -> bool:
        while not self._events.empty():
            self._handle(self._events.get_nowait())
        return self._kill_now

    def _conclude(self, unkillable: list[int]) -> LaunchResult:
        seconds = time.monotonic() - self._start
        exits = tuple(sorted(self._exits, key=lambda end: end.seconds))
        code = self._exit_code or 0
        if unkillable:
            self._write_line(f"processes {', '.join(map(str, unkillable))} could not be killed")
            code = code or 1
        first = self._first_failure
        if first is not None:
            log, tail = self._log_dir / log_name(first.task), self._processes[first.task].tail.lines
            self._write_line(report.failure(first, exits, tail=tail, log=log, tracebacks=self._tracebacks()))
        elif self._overdue:
            still_running = report.names(self._overdue)
            self._write_line(
                f"the timeout of {self._spec.timeout_seconds:g} s has passed; still running: {still_running}"
            )
        elif code > 128:
            self._write_line(f"ended by {signal_name(code - 128)} after {seconds:.1f} s")
        elif not code:
            self._write_line(report.success(self._tasks, exits, seconds=seconds))
        self._write_line(f"logs in {self._log_dir}")
        return LaunchResult(exit_code=code, first_failure=first, exits=exits, log_dir=self._log_dir, seconds=seconds)

    def _tracebacks(self) -> dict[Task, float]:
        times = {task: process.tail.traceback_at for task, process in self._processes.items()}
        return {task: at - self._start for task, at in times.items() if at is not None}

    def _write_line(self, text: str) -> None:
        try:
            self._err.write(f"tfdist launch: {text}\n")
            self._err.flush()
        except (OSError, ValueError):
            pass  # The terminal is gone, but the processes must be ended all the same.


def _names(processes: list[TaskProcess]) -> str:
    return report.names([process.task for process in processes])
