"""Threads: the tasks of a machine start as many threads as there are CPUs, and not many times as many."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from tfdist.cluster import cgroup
from tfdist.doctor.finding import Finding
from tfdist.doctor.roles import computing, job_of

CHECK = "threads"
VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# The coordinator's closures, and the remote calls that they wait for, block threads of this pool.
LEAST_INTEROP_THREADS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Threads:
    """The thread settings of a task, and the CPUs that it may use.

    Args:
        cpus: the numbers of the CPUs that the task may run on.
        limit: how many CPUs' time its container gets; None without a limit.
        settings: the environment variables that are set.
    """

    cpus: tuple[int, ...]
    limit: float | None = None
    settings: dict[str, str] = dataclasses.field(default_factory=dict)

    def setting(self, name: str) -> int | None:
        """Returns the number in a variable; None if it is not set or no number."""
        text = self.settings.get(name, "").strip()
        return int(text) if text.isdecimal() and int(text) > 0 else None

    @property
    def share(self) -> int:
        """The number of CPUs that this task may use."""
        return min(len(self.cpus), max(1, round(self.limit))) if self.limit else len(self.cpus)

    @property
    def started(self) -> int:
        """How many threads TensorFlow starts for computation: without a setting, one for each CPU that it sees."""
        return max(self.setting("TF_NUM_INTRAOP_THREADS") or len(self.cpus), self.setting("OMP_NUM_THREADS") or 1)


def gather() -> Threads:
    """Returns the settings of this process."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Threads(
        cpus=tuple(cpus),
        limit=cgroup.cpu_limit(),
        settings={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def decide(machines: Mapping[str, str], threads: Mapping[str, Threads]) -> list[Finding]:
    """Returns one finding for each task.

    Args:
        machines: which machine each task runs on.
        threads: the settings of each task.

    Example:
        >>> four = Threads(cpus=(0, 1, 2, 3))
        >>> decide({"worker 0": "a"}, {"worker 0": four})[0].text
        '4 threads on 4 CPUs'
        >>> both = {"worker 0": four, "worker 1": four}
        >>> [finding.verdict for finding in decide({"worker 0": "a", "worker 1": "b"}, both)]
        ['pass', 'pass']
        >>> found = decide({"worker 0": "a", "worker 1": "a"}, both)[0]
        >>> found.verdict, found.text
        ('warn', '2 tasks of one machine start 8 threads on 4 CPUs')
        >>> found.action
        'set OMP_NUM_THREADS=2 and TF_NUM_INTRAOP_THREADS=2 for each of them, as tfdist launch does'
        >>> one = Threads(cpus=(0,), settings={"TF_NUM_INTRAOP_THREADS": "1"})
        >>> decide({"worker 0": "a", "worker 1": "a"}, {"worker 0": one, "worker 1": one})[0].line
        '2 tasks of one machine start 2 threads on 1 CPU; start fewer tasks on this machine'
        >>> decide({"worker 0": "a"}, {"worker 0": Threads(cpus=(0, 1, 2, 3), limit=2.0)})[0].text
        '4 threads on 2 CPUs, which is the limit of the container'
    """
    has_ps = any(job_of(task) == "ps" for task in threads)
    return [_of_task(task, machines, threads, has_ps=has_ps) for task in threads]


def _of_task(task: str, machines: Mapping[str, str], threads: Mapping[str, Threads], *, has_ps: bool) -> Finding:
    own = threads[task]
    unreadable = [name for name in VARIABLES[1:] if name in own.settings and own.setting(name) is None]
    if unreadable:
        shown = " and ".join(f"{name}={own.settings[name]!r}" for name in unreadable)
        return _warning(task, f"{shown} is not a positive number", "write a number, or unset it")
    interop = own.setting("TF_NUM_INTEROP_THREADS")
    if has_ps and interop is not None and interop < LEAST_INTEROP_THREADS:
        return Finding(
            check=CHECK,
            task=task,
            verdict="fail",
            text=f"TF_NUM_INTEROP_THREADS={interop} lets a cluster with parameter servers hang, whose remote calls "
            "block these threads",
            action=f"set it to {LEAST_INTEROP_THREADS} or more, or unset it",
        )
    if task not in computing(threads):
        return Finding(check=CHECK, task=task, verdict="pass", text="the task computes little")
    if own.started > own.share:
        where = ", which is the limit of the container" if own.share < len(own.cpus) else ""
        return _warning(
            task,
            f"{_threads(own.started)} on {_cpus(own.share)}{where}",
            f"set OMP_NUM_THREADS={own.share} and TF_NUM_INTRAOP_THREADS={own.share}",
        )
    # Tasks on different CPUs of one machine do not disturb each other.
    together = [
        other
        for other in computing(threads)
        if machines.get(other) == machines.get(task) and set(threads[other].cpus) & set(own.cpus)
    ]
    cpus = {cpu for other in together for cpu in threads[other].cpus}
    started = sum(threads[other].started for other in together)
    if started > len(cpus) and len(together) > 1:
        each = max(1, len(cpus) // len(together))
        action = f"set OMP_NUM_THREADS={each} and TF_NUM_INTRAOP_THREADS={each} for each of them, as tfdist launch does"
        if all(threads[other].started == 1 for other in together):
            action = "start fewer tasks on this machine"
        text = f"{len(together)} tasks of one machine start {_threads(started)} on {_cpus(len(cpus))}"
        return _warning(task, text, action)
    return Finding(check=CHECK, task=task, verdict="pass", text=f"{_threads(own.started)} on {_cpus(own.share)}")


def _warning(task: str, text: str, action: str) -> Finding:
    return Finding(check=CHECK, task=task, verdict="warn", text=text, action=action)


def _threads(count: int) -> str:
    return f"{count} {'thread' if count == 1 else 'threads'}"


def _cpus(count: int) -> str:
    return f"{count} {'CPU' if count == 1 else 'CPUs'}"
