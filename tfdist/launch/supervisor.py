"""Starts the tasks of a run, starts them again after failures, and reports how the run ended."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import sys
import time
import uuid
from typing import TextIO

from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.launch import report, restarts
from tfdist.launch.command import CommandError, check_command
from tfdist.launch.console import Console
from tfdist.launch.guard import Guard
from tfdist.launch.incarnation import TIMEOUT_CODE, Incarnation
from tfdist.launch.log_files import log_name, only_run_in, prepare_log_dir, progress_name, remove_old_attempts
from tfdist.launch.messages import Messages
from tfdist.launch.ports import PortHold
from tfdist.launch.restarts import Failure, Verdict
from tfdist.launch.result import LaunchResult, Restart, TaskExit
from tfdist.launch.run import Outcome, Run
from tfdist.launch.scale import ScaleRequests
from tfdist.launch.screen import Screen
from tfdist.launch.signals import forward_signals, signal_name
from tfdist.launch.spec import LaunchSpec
from tfdist.launch.standby import Standbys

# A restart that fails, because of a name server or the memory of this machine, is tried again after so many seconds.
_START_AGAIN_SECONDS = (1.0, 5.0, 25.0)


def launch(spec: LaunchSpec, *, out: TextIO | Screen | None = None, err: TextIO | None = None) -> LaunchResult:
    """Starts the tasks, and returns when all of their processes have ended.

    Call this function on the main thread: on another thread it cannot pass signals on to the tasks.

    Args:
        spec: the tasks to start, and their command.
        out: where the output of the tasks goes; None is sys.stdout. A Screen shows a progress bar in its own way.
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
    with contextlib.ExitStack() as stack:
        supervisor = _Supervisor(spec, stack)
        console = Console.on(out or sys.stdout, show_all=spec.show == "all")
        messages = Messages(err or sys.stderr, apart=console.apart)
        try:
            return supervisor.run(console, messages)
        finally:
            console.close()
            messages.close()


class _Supervisor:
    """Runs one incarnation of the tasks after the other.

    Args:
        spec: the tasks.
        ports: receives the sockets that hold the ports, and closes them at the end.
    """

    def __init__(self, spec: LaunchSpec, ports: contextlib.ExitStack) -> None:
        self._spec = spec
        self._stack = ports
        # A fixed port belongs to a task for as long as the run may have this task.
        held = spec.cluster_tasks if spec.port_base is None else spec.largest.cluster_tasks
        self._hold = ports.enter_context(PortHold(held, host=spec.host, port_base=spec.port_base))
        self._events: queue.SimpleQueue[TaskExit | int] = queue.SimpleQueue()
        self._failures: list[Failure] = []
        self._restarts: list[Restart] = []
        self._verdict = Verdict(stop=restarts.Cause.NOT_ASKED_FOR)
        self._requests: ScaleRequests | None = None

    def run(self, console: Console, messages: Messages) -> LaunchResult:
        log_dir = prepare_log_dir(self._spec.log_dir)
        self._stack.enter_context(only_run_in(log_dir))
        launch_id = uuid.uuid4().hex
        if self._spec.elastic is not None:
            self._requests = self._stack.enter_context(ScaleRequests(log_dir, self._spec.elastic))
        with forward_signals(self._events.put):
            guard = Guard(launch_id, grace_seconds=self._spec.seconds_to_end)
            standbys = None
            if self._spec.standby:
                standbys = Standbys(self._spec.command, guard=guard, messages=messages)
            run = Run(
                launch_id=launch_id,
                log_dir=log_dir,
                console=console,
                messages=messages,
                events=self._events,
                guard=guard,
                start=time.monotonic(),
                standbys=standbys,
            )
            try:
                remove_old_attempts(log_dir)
                if self._spec.adds_chief:
                    messages.write("--ps needs a coordinator, so a chief is added")
                outcome = self._run_all(run)
            finally:
                if standbys is not None:
                    standbys.close()
                guard.dismiss()
                for task in self._spec.largest.tasks:
                    (log_dir / progress_name(task)).unlink(missing_ok=True)
        return self._conclude(outcome, run)

    def _run_all(self, run: Run) -> Outcome:
        """Runs incarnations until one ends that no other follows, and returns how it ended."""
        outcome = self._incarnation(run)
        while True:
            why = "" if outcome.unkillable else self._why_again(outcome)
            if not why:
                return outcome
            delay = self._verdict.delay_seconds
            received = outcome.received
            if received is None:
                run.messages.write(f"{why}{f', in {delay:g} s' if delay else ''}")
                received = self._wait(min(delay, self._seconds_left(run)))
            if received is not None:
                return self._interrupted(outcome, received, run)
            if self._seconds_left(run) <= 0:
                return self._out_of_time(outcome)
            self._restarts.append(Restart(seconds=time.monotonic() - run.start, why=why))
            outcome = self._next_incarnation(outcome, run)

    def _incarnation(self, run: Run) -> Outcome:
        """Starts all tasks, and returns how they ended."""
        self._hold.release_if_needed()
        return Incarnation(
            self._spec,
            run,
            attempt=len(self._restarts),
            ports={task: self._hold.ports[task] for task in self._spec.cluster_tasks},
            grace_after=self._grace_after,
            requested=lambda: self._requested_workers(run),
        ).run()

    def _next_incarnation(self, outcome: Outcome, run: Run) -> Outcome:
        """Starts all tasks again, and returns how they ended, or how they had ended before if they do not start."""
        for delay in (*_START_AGAIN_SECONDS, None):
            try:
                if self._spec.port_base is None:
                    self._take_fresh_ports()
                return self._incarnation(run)
            except CommandError:
                raise
            except (OSError, ValueError) as error:
                # Such as a name server that does not answer, or no memory for a process.
                again = "" if delay is None else f"; next attempt in {delay:g} s"
                run.messages.write(f"the tasks could not be started again: {error}{again}")
            received = None if delay is None else self._wait(min(delay, self._seconds_left(run)))
            if received is not None:
                return self._interrupted(outcome, received, run)
            if self._seconds_left(run) <= 0:
                return self._out_of_time(outcome)
        self._verdict = Verdict(stop=restarts.Cause.NOT_STARTED, reason="the tasks could not be started again")
        return dataclasses.replace(outcome, resize_to=None, exit_code=outcome.exit_code or 1)

    def _grace_after(self, failure: Failure) -> float:
        """Decides whether the tasks start again, and returns how long the other tasks may take to end."""
        self._failures.append(failure)
        self._verdict = restarts.decide(self._failures, self._spec.limits)
        # A task that asks for a restart has agreed with the others on a snapshot, which they may still be writing.
        if failure.asks_for_restart:
            return self._spec.seconds_to_save
        if self._verdict.stop is not None and not self._goes_on_with_fewer():
            return self._spec.seconds_to_end
        return min(self._spec.seconds_to_end, self._spec.restart_grace_seconds)

    def _goes_on_with_fewer(self) -> bool:
        elastic = self._spec.elastic
        if elastic is None:
            return False
        return restarts.fewer_workers(
            self._verdict, self._failures[-1], workers=self._spec.workers, least=elastic.least
        )

    def _why_again(self, outcome: Outcome) -> str:
        """Returns why the tasks start again, and changes the number of workers if they do with another one."""
        if outcome.resize_to is not None:
            why = f"--scale-to {outcome.resize_to} was asked for: {self._resize(outcome.resize_to)}"
            unsaved = [end.task for end in outcome.exits if end.code not in (0, RESTART_CODE)]
            whose = "its" if len(unsaved) == 1 else "their"
            return f"{why}; {report.names(unsaved)} ended without saving {whose} state" if unsaved else why
        if outcome.first_failure is None:
            return ""
        why = report.failed(self._failures[-1], brief=True)
        if self._verdict.stop is None:
            return f"{why}, {self._verdict.reason}"
        if not self._goes_on_with_fewer():
            return ""
        reason = f"{why}, {self._verdict.reason}" if self._verdict.reason else why
        return f"{reason}: {self._resize(self._spec.workers - 1)}"

    def _resize(self, workers: int) -> str:
        """Changes the number of workers, and returns the change in words."""
        change = f"{self._spec.workers} -> {report.count(workers, 'worker')}"
        self._spec = dataclasses.replace(self._spec, workers=workers)
        # Failures of other workers say nothing about these.
        self._failures.clear()
        self._verdict = Verdict()
        return change

    def _requested_workers(self, run: Run) -> int | None:
        workers = self._requests.take() if self._requests is not None else None
        if workers is not None and workers == self._spec.workers:
            run.messages.write(f"--scale-to {workers} was asked for, which is the present number of workers")
            return None
        return workers

    def _wait(self, seconds: float) -> int | None:
        """Waits, and returns the number of the signal that ended the wait early, if there was one."""
        end = time.monotonic() + seconds
        while True:
            try:
                # A signal may have arrived after the tasks had ended, also if there is no time to wait.
                event = self._events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return None
            if isinstance(event, int):
                return event

    def _seconds_left(self, run: Run) -> float:
        limit = self._spec.timeout_seconds
        return float("inf") if limit is None else run.start + limit - time.monotonic()

    def _out_of_time(self, outcome: Outcome) -> Outcome:
        line = f"the timeout of {self._spec.timeout_seconds:g} s has passed before the tasks started again"
        return dataclasses.replace(outcome, exit_code=TIMEOUT_CODE, report=line, resize_to=None)

    def _take_fresh_ports(self) -> None:
        # The old ports are held meanwhile, so that the new ones differ: a process of the old incarnation that cannot be
        # ended, for example on another machine, must not reach the new tasks.
        fresh = PortHold(self._spec.cluster_tasks, host=self._spec.host)
        self._hold.close()
        self._hold = self._stack.enter_context(fresh)

    def _interrupted(self, outcome: Outcome, received: int, run: Run) -> Outcome:
        """Returns the outcome of a run that a signal ended although the tasks were to start again."""
        seconds = time.monotonic() - run.start
        line = f"ended by {signal_name(received)} after {seconds:.1f} s, before the tasks started again"
        asked_for_restart = any(end.code == RESTART_CODE for end in outcome.exits)
        return dataclasses.replace(
            outcome, exit_code=RESTART_CODE if asked_for_restart else 128 + received, report=line, received=received
        )

    def _conclude(self, outcome: Outcome, run: Run) -> LaunchResult:
        code = outcome.exit_code
        if outcome.unkillable:
            run.messages.write(f"processes {', '.join(map(str, outcome.unkillable))} could not be killed")
            code = code or 1
        if outcome.report:
            run.messages.write(outcome.report)
        if self._restarts:
            run.messages.write(report.restarted(self._restarts))
        if outcome.first_failure is not None and self._verdict.reason and self._verdict.stop is not None:
            run.messages.write(f"not restarted: {self._verdict.reason}")
        run.messages.write(report.logs(run.log_dir, left_out=run.console.left_out))
        first = outcome.first_failure
        has_failed = (first is not None and first.code != RESTART_CODE) or code == TIMEOUT_CODE
        if has_failed and "doctor" not in self._spec.command:
            log = run.log_dir / log_name(outcome.named, len(self._restarts)) if outcome.named is not None else None
            run.messages.write(report.next_step(self._spec, log))
        return LaunchResult(
            exit_code=code,
            first_failure=outcome.first_failure,
            exits=outcome.exits,
            log_dir=run.log_dir,
            seconds=time.monotonic() - run.start,
            restarts=tuple(self._restarts),
        )
