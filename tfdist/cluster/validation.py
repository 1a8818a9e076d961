"""The rules a cluster has to keep, whichever way it was written down: each broken rule is one ValueError."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tfdist.cluster.address import split_address
from tfdist.cluster.tasks import CHIEF_JOBS, KNOWN_JOBS, Task


def validate(
    jobs: Mapping[str, tuple[str, ...]],
    indices: Mapping[str, tuple[int, ...]],
    *,
    task_type: str | None,
    task_index: int,
) -> None:
    """Raises ValueError, naming the field, for the first rule that the cluster breaks.

    Args:
        jobs: the addresses of every job, without empty jobs.
        indices: the task indices of the jobs that this task sees only in part, checked by check_indices.
        task_type: the job of this task; None is a single process.
        task_index: its index within the job.

    Example:
        >>> validate({"worker": ("a:1", "b:1")}, {}, task_type="worker", task_index=1)
        >>> validate({"worker": ("a:1", "b:1")}, {}, task_type="worker", task_index=2)
        Traceback (most recent call last):
        ...
        ValueError: expected task.index to be one of cluster.worker, which has 0 to 1, received 2; correct ...
    """
    _check_jobs(jobs)
    _check_addresses(jobs, indices)
    _check_task(jobs, indices, task_type, task_index)
    _check_roles(jobs, partial=bool(indices))


def tasks_of(jobs: Mapping[str, Sequence[str]], indices: Mapping[str, Sequence[int]]) -> Iterator[Task]:
    """Yields every task that the cluster lists, job by job.

    Example:
        >>> [task.name for task in tasks_of({"worker": ["a:1"]}, {"worker": [3]})]
        ['worker 3']
    """
    for job, addresses in jobs.items():
        for index, address in zip(indices.get(job, range(len(addresses))), addresses, strict=True):
            yield Task(job, index, address)


def as_addresses(field: str, value: object) -> tuple[str, ...]:
    """Returns the addresses of one job as a tuple.

    Raises:
        ValueError: if the value is no list; a bare string is none, since it would fall apart into letters.

    Example:
        >>> as_addresses("cluster.worker", "a:1")
        Traceback (most recent call last):
        ...
        ValueError: expected cluster.worker to be a list of addresses, received 'a:1'; write it as ["a:1"].
    """
    if not isinstance(value, (list, tuple)):
        shown = f'"{value}"' if isinstance(value, str) else '"host:port", ...'
        raise ValueError(f"expected {field} to be a list of addresses, received {value!r}; write it as [{shown}].")
    return tuple(value)


def check_index(field: str, value: object) -> None:
    """Raises ValueError unless the value is an integer from 0 on; bool is none, though Python says so.

    Example:
        >>> check_index("task.index", True)
        Traceback (most recent call last):
        ...
        ValueError: expected task.index to be an integer from 0 on, received True; write the index of this task.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(
            f"expected {field} to be an integer from 0 on, received {value!r}; write the index of this task."
        )


def check_indices(jobs: Mapping[str, tuple[str, ...]], indices: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError unless each job that has indices has as many of them as addresses, and no index twice.

    Example:
        >>> check_indices({"worker": ("a:1", "b:1")}, {"worker": (1, 3)})
    """
    for job, own in indices.items():
        for index in own:
            check_index(f"the indices of cluster.{job}", index)
        if job not in jobs or len(own) != len(jobs[job]) or len(set(own)) != len(own):
            raise ValueError(
                f"expected one index of its own for every address of cluster.{job}, received indices {list(own)!r} "
                f"for {list(jobs.get(job, ()))!r}; correct indices."
            )


def _check_jobs(jobs: Mapping[str, tuple[str, ...]]) -> None:
    for job in jobs:
        if job not in KNOWN_JOBS:
            raise ValueError(
                f"expected the jobs in cluster out of {', '.join(KNOWN_JOBS)}, received {job!r}; "
                "rename it or leave it out."
            )
    both = [job for job in CHIEF_JOBS if job in jobs]
    if len(both) > 1:
        raise ValueError(
            "expected cluster to have one of chief and master, which mean the same, received both; leave one out."
        )
    for job in (*both, "evaluator"):
        if len(jobs.get(job, ())) > 1:
            raise ValueError(
                f"expected cluster.{job} to have one address, since a cluster has one {job}, "
                f"received {len(jobs[job])}: {list(jobs[job])!r}; keep one of them."
            )


def _check_addresses(jobs: Mapping[str, tuple[str, ...]], indices: Mapping[str, tuple[int, ...]]) -> None:
    seen: dict[tuple[str, int], Task] = {}
    for task in tasks_of(jobs, indices):
        host, port = split_address(task.address, field=f"cluster.{task.job}[{task.index}]")
        first = seen.setdefault((host.lower(), port), task)
        if first is not task:
            raise ValueError(
                f"expected every task in cluster to have an address of its own, received {task.address!r} "
                f"for both {first.name} and {task.name}; change one of them."
            )


def _check_task(
    jobs: Mapping[str, tuple[str, ...]],
    indices: Mapping[str, tuple[int, ...]],
    task_type: str | None,
    task_index: int,
) -> None:
    check_index("task.index", task_index)
    if task_type is None:
        if jobs:
            raise ValueError(
                f"expected task.type out of the jobs in cluster ({', '.join(jobs)}), received None; "
                "say which task this process is."
            )
        if task_index:
            raise ValueError(
                f"expected task.index to be 0 for a single process, received {task_index}; "
                "list the processes in cluster."
            )
        return
    if task_type not in KNOWN_JOBS:
        raise ValueError(
            f"expected task.type out of {', '.join(KNOWN_JOBS)}, received {task_type!r}; correct the task type."
        )
    if task_type not in jobs:
        # Some versions of Kubeflow list the evaluator and some do not: it takes no part in the training.
        if task_type == "evaluator" and jobs:
            return
        raise ValueError(
            f"expected task.type out of the jobs in cluster ({', '.join(jobs) or 'there are none'}), "
            f"received {task_type!r}; add cluster.{task_type} with at least one address or correct the task type."
        )
    known = indices.get(task_type, range(len(jobs[task_type])))
    if task_index not in known:
        span = f"0 to {len(known) - 1}" if isinstance(known, range) else ", ".join(map(str, known))
        raise ValueError(
            f"expected task.index to be one of cluster.{task_type}, which has {span}, received {task_index}; "
            "correct the index or add the address of this task."
        )


def _check_roles(jobs: Mapping[str, tuple[str, ...]], *, partial: bool) -> None:
    # A task that sees only a part of its cluster cannot tell whether the rest is there.
    if partial or not jobs:
        return
    has_chief = any(job in jobs for job in CHIEF_JOBS)
    if "ps" in jobs and not has_chief:
        raise ValueError(
            f"expected cluster to have a chief, which coordinates a cluster with ps, received {', '.join(jobs)}; "
            "add cluster.chief with one address."
        )
    if "worker" not in jobs and ("ps" in jobs or not has_chief):
        raise ValueError(
            f"expected cluster to have workers that train, received {', '.join(jobs)}; "
            "add cluster.worker with at least one address."
        )
