"""The options of `tfdist launch`, and the tasks that follow from them, as plain values."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster import Task

OWN_VARIABLES = ("TF_CONFIG", "TFDIST_LAUNCH_ID")
"""Environment variables that the launcher sets itself."""

MOST_TASKS = 1024
"""More tasks than one machine can train with; a larger number is a typing error."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """The tasks to start, their command, and how the launcher supervises them.

    Args:
        command: the program and its arguments, the same for every task. If the program is `-m` or ends in `.py`, it is
            run with this Python.
        workers: the number of workers, at least 0.
        ps: the number of parameter servers, at least 0. If there are parameter servers and `chief` is False, a chief
            that coordinates them is added.
        chief: whether to start a chief.
        evaluator: whether to start an evaluator, which is not part of the cluster.
        host: a name or address of this machine, at which the tasks reach each other.
        port_base: the first of consecutive ports; None chooses free ports.
        log_dir: the directory of the log files; None makes a new directory in `tfdist-logs`.
        grace_seconds: the time between the signal that asks a task to end and SIGKILL.
        evaluator_grace_seconds: how long the evaluator may go on after all other tasks have ended.
        timeout_seconds: the time limit of the whole run; None is no limit.
        threads_per_task: the number of CPU threads of each task that trains or evaluates; None divides the CPUs among
            the tasks that train, 0 sets no number.
        show_info: whether to show TensorFlow's own information lines; the log files always have them.
        env: environment variables to add to those of this process.

    Raises:
        ValueError: if a value is out of its range, there are too many tasks, or the tasks make no cluster.

    Example:
        >>> from tfdist.launch import LaunchSpec
        >>> spec = LaunchSpec(command=("train.py",), workers=2, evaluator=True)
        >>> [task.name for task in spec.tasks]
        ['worker 0', 'worker 1', 'evaluator 0']
        >>> [task.name for task in spec.cluster_tasks]
        ['worker 0', 'worker 1']
    """

    command: tuple[str, ...]
    workers: int = 1
    ps: int = 0
    chief: bool = False
    evaluator: bool = False
    host: str = "localhost"
    port_base: int | None = None
    log_dir: Path | None = None
    grace_seconds: float = 5.0
    evaluator_grace_seconds: float = 60.0
    timeout_seconds: float | None = None
    threads_per_task: int | None = None
    show_info: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.command or not self.command[0] or tuple(self.command) == ("-m",):
            raise ValueError(
                "expected a command to run, received none; write it after `--`, as in "
                "`tfdist launch --workers 2 -- python train.py`."
            )
        _check_count("--workers", self.workers)
        _check_count("--ps", self.ps)
        if self.threads_per_task is not None:
            _check_count("--threads-per-rank", self.threads_per_task)
        if not (self.workers or self.ps or self.chief or self.evaluator):
            raise ValueError("expected at least one task, received none; add --workers, --chief or --evaluator.")
        if self.ps and not self.workers:
            raise ValueError(
                f"expected at least 1 worker with --ps, received --ps {self.ps} and no workers; add --workers 1."
            )
        # The tasks themselves are made below: the tuple of billions of tasks does not fit into memory.
        number = self.workers + self.ps + int(self.chief or self.adds_chief) + int(self.evaluator)
        if number > MOST_TASKS:
            raise ValueError(
                f"expected at most {MOST_TASKS} tasks on one machine, received {number}; lower --workers or --ps."
            )
        _check_seconds("--grace-seconds", self.grace_seconds)
        _check_seconds("--evaluator-grace-seconds", self.evaluator_grace_seconds)
        if self.timeout_seconds is not None:
            _check_seconds("--timeout-seconds", self.timeout_seconds, positive=True)
        tasks = len(self.cluster_tasks)
        last = (self.port_base or 1) + tasks - 1
        if self.port_base is not None and not 1 <= self.port_base <= last <= 65535:
            raise ValueError(
                "expected --port-base and the ports after it, one port for each task, to be from 1 to 65535, "
                f"received {self.port_base} for {tasks} {'task' if tasks == 1 else 'tasks'}."
            )
        for name in OWN_VARIABLES:
            if name in self.env:
                raise ValueError(
                    f"expected --env without {name}, which the launcher sets, received {name}={self.env[name]!r}."
                )

    @property
    def adds_chief(self) -> bool:
        """Whether a chief is added because parameter servers need one."""
        return self.ps > 0 and not self.chief

    @property
    def cluster_tasks(self) -> tuple[Task, ...]:
        """The tasks that TF_CONFIG lists in its cluster, the chief first; they have no addresses yet."""
        counts = {"chief": int(self.chief or self.adds_chief), "worker": self.workers, "ps": self.ps}
        return tuple(Task(job, index) for job, count in counts.items() for index in range(count))

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, in the order in which they are started."""
        return self.cluster_tasks + ((Task("evaluator", 0),) if self.evaluator else ())

    @property
    def argv(self) -> list[str]:
        """The words of the command as they are executed."""
        first = self.command[0]
        by_this_python = first == "-m" or first.endswith(".py")
        return [*([sys.executable] if by_this_python else []), *self.command]


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"expected {name} to be 0 or more, received {value}.")


def _check_seconds(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "0 or more"
        raise ValueError(f"expected {name} to be a finite number, {bound}, received {value:g}.")
