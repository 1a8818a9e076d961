"""The options of `tfdist launch`, and the tasks that follow from them, as plain values."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster import Task
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID, LIVE, PROGRESS_FILE
from tfdist.launch.adoption import check_adoptable
from tfdist.launch.restarts import Limits
from tfdist.launch.scale import Elastic

OWN_VARIABLES = ("TF_CONFIG", LAUNCH_ID, ATTEMPT, PROGRESS_FILE, LIVE)
"""Environment variables that the launcher sets itself."""

DEFAULT_PREEMPTIONS = 100
"""How often tasks may ask for a restart if crashes are restarted and no number is given."""

SHOWN = ("program", "all")
"""The values of `show`."""

SECONDS_TO_END = 5.0
SECONDS_TO_SAVE = 30.0

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
        grace_seconds: the time between the signal that asks a task to end and SIGKILL; None is 30 s where the tasks may
            save their state, else 5 s.
        evaluator_grace_seconds: how long the evaluator may go on after all other tasks have ended.
        timeout_seconds: the time limit of the whole run; None is no limit.
        threads_per_task: the number of CPU threads of each task that trains or evaluates; None divides the CPUs among
            the tasks that train, 0 sets no number.
        max_restarts: how often all tasks start again after one has failed.
        restart_budget_seconds: only failures within the last so many seconds count against `max_restarts` and
            `max_preemptions`; None counts all.
        max_preemptions: how often all tasks start again because one ended with exit code 75, which asks for it; None is
            100 if `max_restarts` is more than 0 or `elastic` is given, else 0.
        restart_grace_seconds: how long the other tasks may take to end before they are killed, after a task has failed
            and if all start again; the time of `grace_seconds` counts if it is less.
        elastic: the numbers of workers with which the run may go on: with one less if a worker is gone for good, and
            with the number that `tfdist launch --scale-to` asks for; None is only `workers`.
        standby: whether to keep a process for each task ready with TensorFlow imported, so that a restart skips the
            import; only for a command that is `-m` or ends in `.py`.
        show: which lines of the tasks to show: "program" leaves out log lines of TensorFlow and other dependencies, and
            shows a log line once that several tasks write alike; "all" shows all lines. The log files always have all.
        adopt: whether the Python program of each task calls `tfdist.adopt()` before it begins, so that strategies that
            it makes itself are prepared as create_strategy's are.
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
    grace_seconds: float | None = None
    evaluator_grace_seconds: float = 60.0
    timeout_seconds: float | None = None
    threads_per_task: int | None = None
    max_restarts: int = 0
    restart_budget_seconds: float | None = None
    max_preemptions: int | None = None
    restart_grace_seconds: float = 1.0
    elastic: Elastic | None = None
    standby: bool = False
    show: str = "program"
    adopt: bool = False
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
        workers = max(self.workers, self.elastic.most if self.elastic else 0)
        number = workers + self.ps + int(self.chief or self.adds_chief) + int(self.evaluator)
        if number > MOST_TASKS:
            raise ValueError(
                f"expected at most {MOST_TASKS} tasks on one machine, received {number}; lower --workers or --ps."
            )
        if self.grace_seconds is not None:
            _check_seconds("--grace-seconds", self.grace_seconds)
        _check_seconds("--evaluator-grace-seconds", self.evaluator_grace_seconds)
        if self.timeout_seconds is not None:
            _check_seconds("--timeout-seconds", self.timeout_seconds, positive=True)
        if self.show not in SHOWN:
            raise ValueError(f"expected --show to be {' or '.join(SHOWN)}, received {self.show!r}.")
        self._check_restarts()
        if self.adopt:
            check_adoptable(self.argv)
        tasks = len(self.cluster_tasks) + (self.elastic.most - self.workers if self.elastic else 0)
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

    def _check_restarts(self) -> None:
        _check_count("--max-restarts", self.max_restarts)
        _check_count("--max-preemptions", self.max_preemptions or 0)
        _check_seconds("--restart-grace-seconds", self.restart_grace_seconds)
        if self.restart_budget_seconds is not None:
            _check_seconds("--restart-budget-seconds", self.restart_budget_seconds, positive=True)
            if not self.restarts:
                raise ValueError(
                    "expected --max-restarts or --max-preemptions with --restart-budget-seconds "
                    f"{self.restart_budget_seconds:g}, received neither; add --max-restarts 3."
                )

        if self.elastic is not None:
            self._check_elastic(self.elastic)
        if self.standby and not self.restarts:
            raise ValueError("expected --max-restarts with --standby, received none; add --max-restarts 3.")
        if self.standby and not self.is_python:
            raise ValueError(
                "expected a Python file or `-m MODULE` as the command with --standby, received "
                f"{self.command[0]!r}; write `-- train.py` instead of `-- python train.py`."
            )

    @property
    def seconds_to_end(self) -> float:
        """How long tasks may take to end after a failure or an interrupt, before they are killed."""
        return SECONDS_TO_END if self.grace_seconds is None else self.grace_seconds

    @property
    def seconds_to_save(self) -> float:
        """How long tasks may take to save their state and to end, before they are killed."""
        return SECONDS_TO_SAVE if self.grace_seconds is None else self.grace_seconds

    def _check_elastic(self, elastic: Elastic) -> None:
        text = f"--elastic {elastic.least}:{elastic.most}"
        if self.ps:
            raise ValueError(
                f"expected no --ps with {text}, received --ps {self.ps}; leave one of them out: parameter servers hold "
                "the weights of a fixed number of workers."
            )
        if not elastic.least <= self.workers <= elastic.most:
            raise ValueError(
                f"expected --workers to be from {elastic.least} to {elastic.most} with {text}, received {self.workers}."
            )

    @property
    def largest(self) -> LaunchSpec:
        """The same run with its largest number of workers."""
        return self if self.elastic is None else dataclasses.replace(self, workers=self.elastic.most)

    @property
    def is_python(self) -> bool:
        """Whether the command is a module or a file that is run with this Python."""
        return self.command[0] == "-m" or self.command[0].endswith(".py")

    @property
    def limits(self) -> Limits:
        """How often all tasks may start again."""
        preemptions = self.max_preemptions
        if preemptions is None:
            preemptions = DEFAULT_PREEMPTIONS if self.max_restarts or self.elastic else 0
        return Limits(
            max_restarts=self.max_restarts, max_preemptions=preemptions, window_seconds=self.restart_budget_seconds
        )

    @property
    def restarts(self) -> bool:
        """Whether the tasks start again after any failure."""
        return bool(self.max_restarts or self.limits.max_preemptions or self.elastic)

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
        return [*([sys.executable] if self.is_python else []), *self.command]


def _check_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"expected {name} to be 0 or more, received {value}.")


def _check_seconds(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        bound = "more than 0" if positive else "0 or more"
        raise ValueError(f"expected {name} to be a finite number, {bound}, received {value:g}.")
