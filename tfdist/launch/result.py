"""How a task and a whole run ended, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster import Task
from tfdist.launch.signals import signal_name


@dataclass(frozen=True, kw_only=True)
class TaskExit:
    """How a task ended.

    Args:
        task: the task.
        code: its exit code, or the negative number of the signal that killed it.
        seconds: when it ended, in seconds after the start of the run.
        signalled: whether the launcher had sent it a signal before it ended.

    Example:
        >>> from tfdist.launch import Task, TaskExit
        >>> end = TaskExit(task=Task("worker", 1), code=-9, seconds=3.5)
        >>> end.how, end.shell_code
        ('killed by SIGKILL', 137)
    """

    task: Task
    code: int
    seconds: float
    signalled: bool = False

    @property
    def shell_code(self) -> int:
        """The exit code that a shell reports, which is 128 + the signal's number for a task that was killed."""
        return self.code if self.code >= 0 else 128 - self.code

    @property
    def how(self) -> str:
        """The end in words, such as "exit code 3" or "killed by SIGKILL"."""
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {signal_name(-self.code)}"


@dataclass(frozen=True, kw_only=True)
class Restart:
    """One restart of all tasks.

    Args:
        seconds: when the tasks were started again, in seconds after the start of the run.
        why: the reason, such as "worker 1 failed (exit code 3), restart 1 of 3".

    Example:
        >>> from tfdist.launch import Restart
        >>> Restart(seconds=61.2, why="worker 1 failed (exit code 3), restart 1 of 3").seconds
        61.2
    """

    seconds: float
    why: str


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    """How a run ended.

    Args:
        exit_code: 0 for success, else the code of the task that failed first, 128 + the number of a signal that the
            launcher received, or 124 for a timeout; 75 if the tasks asked for a restart and were not restarted.
        first_failure: the end of the task that failed first, after the last restart; None if no task failed.
        exits: how each task ended, in the order of their ends, after the last restart.
        log_dir: the directory of the log files.
        seconds: how long the run took.
        restarts: the restarts of all tasks, oldest first.

    Example:
        >>> from pathlib import Path
        >>> from tfdist.launch import LaunchResult, Task, TaskExit
        >>> failed = TaskExit(task=Task("worker", 1), code=3, seconds=2.0)
        >>> result = LaunchResult(
        ...     exit_code=3, first_failure=failed, exits=(failed,), log_dir=Path("tfdist-logs"), seconds=2.1
        ... )
        >>> result.first_failure.task.name
        'worker 1'
    """

    exit_code: int
    first_failure: TaskExit | None
    exits: tuple[TaskExit, ...]
    log_dir: Path
    seconds: float
    restarts: tuple[Restart, ...] = ()
