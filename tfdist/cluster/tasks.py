"""The kinds of task a cluster has, and the value that names one of them."""

from __future__ import annotations

from typing import NamedTuple

# TensorFlow 1 and AI Platform say "master" where TensorFlow 2 says "chief"; both lead the training.
CHIEF_JOBS = ("chief", "master")
KNOWN_JOBS = (*CHIEF_JOBS, "worker", "ps", "evaluator")


class Task(NamedTuple):
    """One process of a cluster.

    Args:
        job: its task type, such as "worker".
        index: its index within the job.
        address: where it listens, as `host:port`.

    Example:
        >>> str(Task("worker", 1, "localhost:2222"))
        'worker 1 at localhost:2222'
    """

    job: str
    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody asks of a task
    address: str

    @property
    def name(self) -> str:
        """The job and the index, such as "worker 1"."""
        return f"{self.job} {self.index}"

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"
