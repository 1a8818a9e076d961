"""One start of all tasks: starts them, watches over them until all have ended, and ends what they leave behind."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from tfdist.cluster import Task
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.launch import policy, report
from tfdist.launch.log_files import newest_step
from tfdist.launch.process import TaskProcess
from tfdist.launch.restarts import Failure
from tfdist.launch.result import TaskExit
from tfdist.launch.run import Outcome, Run
from tfdist.launch.signals import signal_name
from tfdist.launch.spec import LaunchSpec
from tfdist.launch.starting import start_tasks
from tfdist.launch.stopped import StoppedTasks
from tfdist.launch.sweep import sweep

TIMEOUT_CODE = 124
UNKILLABLE_SECONDS = 10.0
OUTPUT_SECONDS = 3.0


class Incarnation:
    """One start of all tasks. All methods run on one thread; the threads of the tasks only put events into a queue.

    Args:
        spec: the tasks.
        run: what all incarnations share.
        attempt: how often the tasks had been restarted before.
        ports: the port of each task of the cluster.
        grace_after: called once if a task fails; returns how long the others may take to end.
        requested: called every second; returns another number of workers, for which the tasks are to be ended, or None.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        run: Run,
        *,
        attempt: int,
        ports: Mapping[Task, int],
        grace_after: Callable[[Failure], float],
        requested: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._run = run
        self._write = run.messages.write
        self._attempt = attempt
        self._ports = ports
        self._grace_after = grace_after
        self._requested = requested
        self._resize_to: int | None = None
        self._tasks = spec.tasks
        self._processes: dict[Task, TaskProcess] = {}
        self._envs: dict[Task, dict[str, str]] = {}
        self._exits: list[TaskExit] = []
        self._exit_code: int | None = None
        self._first_failure: TaskExit | None = None
        self._received: int | None = None
        self._overdue: list[Task] = []
        # When the launcher ends each task that the run no longer needs, unless the task has ended by itself.
        self._end_unneeded_at: dict[Task, float] = {}
        self._kill_now = False
        self._stopped = StoppedTasks()
        self._grace_seconds = spec.seconds_to_end

    def run(self) -> Outcome:
        """Starts all tasks, and returns when all of their processes have ended."""
        try:
            self._envs = start_tasks(self._spec, self._run, self._processes, attempt=self._attempt, ports=self._ports)
            self._watch()
        except BaseException:
            self._kill_now = True
            raise
        finally:
            unkillable = self._clean_up()
        return self._outcome(unkillable)

    def _running(self) -> list[TaskProcess]:
        return [process for process in self._processes.values() if not process.ended]

    def _watch(self) -> None:
        give_up_at = float("inf")
        while self._running():
            self._wait_for_events()
            self._decide()
            self._run.guard.keep_alive()
            if self._run.standbys and self._exit_code is None:
                self._run.standbys.tend(self._envs, self._made_step)
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
            deadlines.append(self._run.start + self._spec.timeout_seconds)
        return min(deadlines, default=float("inf"))

    def _wait_for_events(self) -> None:
        """Waits for the next event or deadline, and handles all events that have arrived."""
        # The wait is bounded, so that a killed process which does not end cannot block the loop for ever.
        wait = min(max(0.0, self._next_deadline() - time.monotonic()), 1.0)
        try:
            event = self._run.events.get(timeout=wait) if wait else self._run.events.get_nowait()
            while True:
                self._handle(event)
                event = self._run.events.get_nowait()
        except queue.Empty:
            return

    def _handle(self, event: TaskExit | int) -> None:
        if isinstance(event, TaskExit):
            self._processes[event.task].ended = True
            self._exits.append(event)
            return
        running, line = self._running(), ""
        if not running and self._has_succeeded():
            return
        is_first = self._received is None
        self._received = self._received or event
        if self._exit_code is None:
            self._exit_code = 128 + event
            line = f"received {signal_name(event)}, passing it on to {_names(running)}"
        elif event == signal.SIGINT and not is_first:
            self._kill_now = True
            self._write(f"killing {_names(running) if running else 'the remaining processes'}")
            return
        grace_seconds = self._spec.seconds_to_end if event == signal.SIGINT else self._spec.seconds_to_save
        for process in running:
            process.end(event, grace_seconds=grace_seconds)
        if line and running:
            self._write(line)

    def _has_succeeded(self) -> bool:
        return len(self._exits) == len(self._tasks) and all(end.code == 0 for end in self._exits)

    def _decide(self) -> None:
        if self._exit_code is not None:
            return
        now = time.monotonic()
        self._first_failure = policy.first_failure(self._tasks, self._exits)
        if self._first_failure is not None:
            self._exit_code = self._first_failure.shell_code
            self._end_failed_run(self._first_failure)
        elif self._spec.timeout_seconds is not None and now - self._run.start >= self._spec.timeout_seconds:
            self._exit_code = TIMEOUT_CODE
            self._overdue = [process.task for process in self._running()]
            self._end(self._overdue)
        else:
            self._resize_to = self._requested()
            if self._resize_to is None:
                self._end_unneeded_tasks(now)
                self._kill_stopped_tasks()
            else:
                # The tasks write a snapshot and end with the code that asks for a restart.
                self._exit_code = 0
                self._grace_seconds = self._spec.seconds_to_save
                self._end([process.task for process in self._running()])

    def _end_failed_run(self, first: TaskExit) -> None:
        failure = self._failure(first)
        self._grace_seconds = self._grace_after(failure)
        running = self._running()
        for process in running:
            process.hidden = True
        self._end([process.task for process in running])
        # The tasks are ended before the line is written: a terminal that is paused must not keep them running.
        if running:
            self._write(f"{report.failed(failure)}; ending {_names(running)}")

    def _failure(self, first: TaskExit) -> Failure:
        cause = policy.cause(first, self._tracebacks(handled=False))
        task = cause or first.task
        # A task that has ended, or that has raised an exception, records no more steps.
        return Failure(
            task=task,
            how="an exception" if cause else first.how,
            code=1 if cause else first.code,
            at=first.seconds,
            ran_seconds=first.seconds - (self._processes[task].started_at - self._run.start),
            step=newest_step(self._run.log_dir, policy.recorders(task, self._tasks)),
        )

    def _made_step(self) -> bool:
        return newest_step(self._run.log_dir, self._tasks) is not None

    def _end_unneeded_tasks(self, now: float) -> None:
        for task in policy.unneeded_tasks(self._tasks, self._exits):
            if task not in self._end_unneeded_at:
                is_evaluator = task.job == "evaluator"
                grace = self._spec.evaluator_grace_seconds if is_evaluator else self._spec.seconds_to_end
                self._end_unneeded_at[task] = now + grace
            elif self._end_unneeded_at[task] <= now:
                self._end_unneeded_at[task] = float("inf")
                self._processes[task].hidden = True
                self._end([task])

    def _kill_stopped_tasks(self) -> None:
        running = self._running()
        if self._exits and running and self._stopped.overdue(running):
            after = f"for {self._stopped.seconds:g} s after the end of all other tasks"
            self._write(f"stopped by a signal {after}, killed now: {_names(running)}")
            for process in running:
                # The launcher has not asked the task to end: its end counts as a failure.
                process.send(signal.SIGKILL)

    def _end(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._processes[task].end(signal.SIGTERM, grace_seconds=self._grace_seconds)

    def _clean_up(self) -> list[int]:
        """Ends the processes that the tasks have started, and returns the numbers of processes that do not end."""
        groups = {process.group for process in self._processes.values()}
        if self._kill_now:
            for process in self._processes.values():
                process.kill()
        unkillable = sweep(
            groups,
            self._run.launch_id,
            grace_seconds=min(self._grace_seconds, self._spec.seconds_to_end),
            kill_now=self._is_to_be_killed_now,
            spared=self._run.standbys.groups if self._run.standbys else (),
        )
        for process in self._processes.values():
            process.finish(OUTPUT_SECONDS)
            if process.group not in unkillable:
                self._run.guard.remove(process.group)
        return unkillable

    def _is_to_be_killed_now(self) -> bool:
        while not self._run.events.empty():
            self._handle(self._run.events.get_nowait())
        return self._kill_now

    def _outcome(self, unkillable: list[int]) -> Outcome:
        asked_for_restart = any(end.code == RESTART_CODE for end in self._exits)
        code, first, line = self._exit_code or 0, self._first_failure, ""
        cause = None if first is None else policy.cause(first, self._tracebacks(handled=False))
        seconds = time.monotonic() - self._run.start
        exits = tuple(sorted(self._exits, key=lambda end: end.seconds))
        # If all tasks had ended before they received the signal, the run has succeeded.
        resize_to = self._resize_to if any(end.signalled for end in exits) else None
        if first is not None:
            line = self._failure_report(first, exits, cause)
        elif self._overdue:
            still_running = report.names(self._overdue)
            line = f"the timeout of {self._spec.timeout_seconds:g} s has passed; still running: {still_running}"
        elif self._received is not None:
            code = code or 128 + self._received
            line = f"ended by {signal_name(self._received)} after {seconds:.1f} s"
            if asked_for_restart:
                code = RESTART_CODE
                line += f"; the tasks ask for a restart with exit code {RESTART_CODE}"
        elif not code and resize_to is None:
            line = report.success(self._tasks, exits, seconds=seconds)
        return Outcome(
            exit_code=code,
            exits=exits,
            report=line,
            first_failure=first,
            named=None if first is None else cause or first.task,
            received=self._received,
            resize_to=resize_to,
            unkillable=tuple(unkillable),
        )

    def _failure_report(self, first: TaskExit, exits: Sequence[TaskExit], cause: Task | None) -> str:
        process = self._processes[first.task]
        return report.failure(
            first,
            exits,
            tail=process.tail.lines,
            log=process.log_path,
            tracebacks=self._tracebacks(),
            attempt=self._attempt,
            cause=cause,
            cause_tail=self._processes[cause].tail.lines if cause else (),
        )

    def _tracebacks(self, *, handled: bool = True) -> dict[Task, float]:
        kept = [(task, p.tail.traceback_at) for task, p in self._processes.items() if handled or not p.tail.went_on]
        return {task: at - self._run.start for task, at in kept if at is not None}


def _names(processes: list[TaskProcess]) -> str:
    return report.names([process.task for process in processes])
