"""The task types of a cluster, and the value that names one task."""

from __future__ import annotations

from typing import NamedTuple

# TensorFlow 1 and AI Platform call the task that leads the training "master", TensorFlow 2 calls it "chief".
CHIEF_JOBS = ("chief", "master")
KNOWN_JOBS = (*CHIEF_JOBS, "worker", "ps", "evaluator")


class Task(NamedTuple):
    """One process of a distributed training, named as in TF_CONFIG.

    Args:
        job: the task type, such as "worker".
        index: the index of the task within its job, from 0.
        address: where the task listens, as `host:port`; "" if the task has no address, or none yet.

    Example:
        >>> from tfdist.cluster import Task
        >>> task = Task("worker", 1, "localhost:2222")
        >>> task.name
        'worker 1'
        >>> str(task)
        'worker 1 at localhost:2222'
    """

    job: str
    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody calls on a task
    address: str = ""

    @property
    def name(self) -> str:
        """The job and the index, such as "worker 1"."""
        return f"{self.job} {self.index}"

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.address else self.name


def same_task(name: str, other: str) -> bool:
    """Returns whether two names mean one task; "chief 0" and "master 0" do.

    Example:
        >>> same_task("chief 0", "master 0"), same_task("worker 0", "worker 1")
        (True, False)
    """
    return _with_one_chief(name) == _with_one_chief(other)


def _with_one_chief(name: str) -> str:
    job, _, index = name.partition(" ")
    return f"{CHIEF_JOBS[0] if job in CHIEF_JOBS else job} {index}"
