"""What all incarnations of one run share, and how one incarnation ended, as plain values."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster import Task
from tfdist.launch.console import Console
from tfdist.launch.guard import Guard
from tfdist.launch.messages import Messages
from tfdist.launch.process import TaskProcess
from tfdist.launch.result import TaskExit
from tfdist.launch.standby import Standbys


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all incarnations of one run share.

    Args:
        launch_id: the unique name of the launch.
        log_dir: the directory of the log files.
        console: shows the output of the tasks.
        messages: shows the launcher's own lines.
        events: receives the end of each task, and the number of each signal to the launcher. SimpleQueue.put is
            reentrant, so that a signal handler may call it.
        guard: ends the tasks if the launcher is killed.
        start: when the run began, by `time.monotonic`.
        standbys: the standby processes; None if there are none.
    """

    launch_id: str
    log_dir: Path
    console: Console
    messages: Messages
    events: queue.SimpleQueue[TaskExit | int]
    guard: Guard
    start: float
    standbys: Standbys | None = None

    def on_exit(self, process: TaskProcess, code: int, now: float) -> None:
        """Puts the end of a task into the queue; any thread may call this method."""
        signalled = process.signalled_at is not None and process.signalled_at <= now
        self.events.put(TaskExit(task=process.task, code=code, seconds=now - self.start, signalled=signalled))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one start of all tasks ended.

    Args:
        exit_code: the exit code of the launcher if the tasks do not start again.
        exits: how each task ended.
        report: what is said about the end if the tasks do not start again.
        first_failure: the end of the task that ended first with a failure; None if no task failed.
        named: the task that the report names as the first to fail, whose exception may have made another end sooner.
        received: the signal to the launcher that ended the tasks; None if there was none.
        resize_to: the number of workers with which the tasks are to start again; None if nobody asked for another one.
        unkillable: the numbers of the processes that could not be ended.
    """

    exit_code: int
    exits: tuple[TaskExit, ...]
    report: str
    first_failure: TaskExit | None = None
    named: Task | None = None
    received: int | None = None
    resize_to: int | None = None
    unkillable: tuple[int, ...] = ()
