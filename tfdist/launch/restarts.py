"""Decides whether all tasks start again after one has failed. Pure functions of the failures so far."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster import Task
from tfdist.cluster.exit_codes import RESTART_CODE

SAME_STEP_LIMIT = 3
"""How often in a row a task may fail at the same step; as many failures are a defect that a restart does not mend."""

LONGEST_DELAY_SECONDS = 30.0

LONG_SECONDS = 600.0
"""A task that ran this long has made progress, even if its program records no steps."""

_TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How often all tasks may start again.

    Args:
        max_restarts: restarts after crashes.
        max_preemptions: restarts that tasks ask for with exit code 75, counted apart.
        window_seconds: only failures within the last so many seconds count; None counts all.
    """

    max_restarts: int = 0
    max_preemptions: int = 0
    window_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure of one start of all tasks.

    Args:
        task: the task that failed first.
        how: its end in words, such as "exit code 3".
        code: its exit code, or the negative number of the signal that killed it.
        at: when it failed, in seconds after the start of the run.
        ran_seconds: how long the task had run.
        step: the training steps that it had completed; None if it recorded no step since it was started.

    Example:
        >>> Failure(task=Task("worker", 1), how="exit code 3", code=3, at=60.0, ran_seconds=60.0, step=811).place
        'step 812'
    """

    task: Task
    how: str
    code: int
    at: float
    ran_seconds: float
    step: int | None = None

    @property
    def asks_for_restart(self) -> bool:
        """Whether the task has saved its state and ended with the exit code that asks for a restart."""
        return self.code == RESTART_CODE

    @property
    def place(self) -> str:
        """Where the task failed: the step after the last completed one, or before the first recorded step."""
        return "the time before the first recorded step" if self.step is None else f"step {self.step + 1}"

    @property
    def made_progress(self) -> bool:
        """Whether the task completed a step since it was started, or ran long enough that it may have."""
        return self.step is not None or self.ran_seconds >= LONG_SECONDS


class Cause(enum.Enum):
    """Why the tasks do not start again."""

    NOT_ASKED_FOR = enum.auto()
    BUDGET = enum.auto()
    SAME_STEP = enum.auto()
    NO_STEP = enum.auto()
    NOT_STARTED = enum.auto()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows from a failure.

    Args:
        stop: why the tasks do not start again; None if they do.
        reason: the decision in words; "" if the user has asked for no restarts.
        delay_seconds: the time to wait before the tasks start again.
    """

    stop: Cause | None = None
    reason: str = ""
    delay_seconds: float = 0.0


def decide(failures: Sequence[Failure], limits: Limits) -> Verdict:
    """Returns whether all tasks start again after the last of the failures.

    Args:
        failures: one failure for each start of the tasks, oldest first, at least one.
        limits: how often all tasks may start again.

    Example:
        >>> crash = Failure(task=Task("worker", 1), how="exit code 3", code=3, at=60.0, ran_seconds=60.0, step=811)
        >>> decide([crash], Limits(max_restarts=5)).reason
        'restart 1 of 5'
        >>> decide([crash] * 3, Limits(max_restarts=5)).reason
        'step 812 failed three times on worker 1'
        >>> decide([crash], Limits()).stop
        <Cause.NOT_ASKED_FOR: 1>
    """
    last = failures[-1]
    allowed = limits.max_preemptions if last.asks_for_restart else limits.max_restarts
    if not allowed:
        return Verdict(stop=Cause.NOT_ASKED_FOR)
    repeated = repeated_failure(failures)
    if repeated:
        return Verdict(stop=Cause.NO_STEP if last.step is None else Cause.SAME_STEP, reason=repeated)
    window = limits.window_seconds
    counted = [
        failure
        for failure in failures
        if failure.asks_for_restart == last.asks_for_restart and (window is None or last.at - failure.at <= window)
    ]
    kind = "restart on request" if last.asks_for_restart else "restart"
    within = "" if window is None else f" within {window:g} s"
    if len(counted) > allowed:
        plural = "s" if allowed > 1 else ""
        what = f"{allowed} restart{plural}{' on request' if last.asks_for_restart else ''}"
        return Verdict(stop=Cause.BUDGET, reason=f"the limit of {what}{within} is used up")
    return Verdict(reason=f"{kind} {len(counted)} of {allowed}{within}", delay_seconds=delay_seconds(failures))


def repeated_failure(failures: Sequence[Failure]) -> str:
    """Returns a sentence if the last three failures were of one task at one step; else an empty text.

    Failures before the first recorded step count as failures at one step, with two exceptions: a task that ran for ten
    minutes, since its program may record no steps, and a task that asked for a restart, since it may have been
    preempted again before it made a step.

    Example:
        >>> early = Failure(task=Task("worker", 0), how="exit code 1", code=1, at=5.0, ran_seconds=5.0)
        >>> repeated_failure([early, early, early])
        'worker 0 failed three times in a row before it recorded a step'
        >>> repeated_failure([early, early])
        ''
    """
    last = failures[-SAME_STEP_LIMIT:]
    if len(last) < SAME_STEP_LIMIT or len({(failure.task, failure.step) for failure in last}) > 1:
        return ""
    times, task = _TIMES.get(SAME_STEP_LIMIT, f"{SAME_STEP_LIMIT} times"), last[0].task.name
    if last[0].step is not None:
        return f"{last[0].place} failed {times} on {task}"
    if any(failure.made_progress or failure.asks_for_restart for failure in last):
        return ""
    return f"{task} failed {times} in a row before it recorded a step"


def delay_seconds(failures: Sequence[Failure]) -> float:
    """Returns the time to wait before the tasks start again: 0 s, and longer if they keep failing without progress.

    Example:
        >>> early = Failure(task=Task("worker", 0), how="exit code 1", code=1, at=5.0, ran_seconds=5.0)
        >>> [delay_seconds([early] * count) for count in (1, 2, 3, 4, 9)]
        [0.0, 1.0, 2.0, 4.0, 30.0]
    """
    vain = 0
    for failure in reversed(failures):
        if failure.made_progress:
            break
        vain += 1
    return 0.0 if vain < 2 else min(2.0 ** min(vain - 2, 10), LONGEST_DELAY_SECONDS)


def fewer_workers(verdict: Verdict, failure: Failure, *, workers: int, least: int) -> bool:
    """Returns whether an elastic run goes on with one worker less after a failure that ends other runs.

    A worker is gone for good if its restarts are used up, or if it fails again and again before its first step. A
    worker that fails again and again at a later step is not: its program or data fails there on any worker.

    Example:
        >>> failure = Failure(task=Task("worker", 1), how="exit code 1", code=1, at=5.0, ran_seconds=5.0)
        >>> fewer_workers(Verdict(stop=Cause.BUDGET), failure, workers=2, least=1)
        True
        >>> fewer_workers(Verdict(stop=Cause.SAME_STEP), failure, workers=2, least=1)
        False
    """
    gone = verdict.stop in (Cause.NOT_ASKED_FOR, Cause.BUDGET, Cause.NO_STEP) and not failure.asks_for_restart
    return gone and failure.task.job == "worker" and workers > least
