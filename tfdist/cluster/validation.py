"""Checks the rules of a valid cluster; a broken rule raises a ValueError that names the field."""

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
    """Raises a ValueError that names the field, for the first rule that the cluster breaks.

    Args:
        jobs: the addresses of every job, without empty jobs.
        indices: the task indices of the jobs that are listed only in part, already checked by check_indices.
        task_type: the job of this task; None for a single process.
        task_index: the index of this task within its job.

    Example:
        >>> validate({"worker": ("a:1", "b:1")}, {}, task_type="worker", task_index=1)
        >>> validate({"worker": ("a:1", "b:1")}, {}, task_type="worker", task_index=2)
        Traceback (most recent call last):
        ...
        ValueError: expected task.index to be an index of cluster.worker, which has 0 to 1, received 2; correct ...
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
        ValueError: if the value is not a list or tuple. A string is refused too, since its letters are not addresses.

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
    """Raises ValueError unless the value is an integer of at least 0; True and False are refused.

    Example:
        >>> check_index("task.index", True)
        Traceback (most recent call last):
        ...
        ValueError: expected task.index to be an integer of at least 0, received True.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"expected {field} to be an integer of at least 0, received {value!r}.")


def check_indices(jobs: Mapping[str, tuple[str, ...]], indices: Mapping[str, tuple[int, ...]]) -> None:
    """Raises ValueError unless each job in `indices` has a different index for each of its addresses.

    Example:
        >>> check_indices({"worker": ("a:1", "b:1")}, {"worker": (1, 3)})
    """
    for job, own in indices.items():
        for index in own:
            check_index(f"the indices of cluster.{job}", index)
        if job not in jobs or len(own) != len(jobs[job]) or len(set(own)) != len(own):
            raise ValueError(
                f"expected a different index for each address of cluster.{job}, received indices {list(own)!r} "
                f"for {list(jobs.get(job, ()))!r}."
            )


def _check_jobs(jobs: Mapping[str, tuple[str, ...]]) -> None:
    for job in jobs:
        if job not in KNOWN_JOBS:
            raise ValueError(
                f"expected the jobs in cluster to be among {', '.join(KNOWN_JOBS)}, received {job!r}; "
                "rename or remove this job."
            )
    both = [job for job in CHIEF_JOBS if job in jobs]
    if len(both) > 1:
        raise ValueError(
            "expected cluster to have either chief or master, which mean the same, received both; remove one of them."
        )
    for job in (*both, "evaluator"):
        if len(jobs.get(job, ())) > 1:
            raise ValueError(
                f"expected cluster.{job} to have one address, since a cluster has one {job}, "
                f"received {len(jobs[job])}: {list(jobs[job])!r}; remove all but one."
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
                f"expected task.type to be one of the jobs in cluster ({', '.join(jobs)}), received None; "
                "set the task type and index of this process."
            )
        if task_index:
            raise ValueError(
                f"expected task.index to be 0 for a single process, received {task_index}; "
                "list all processes in cluster."
            )
        return
    if task_type not in KNOWN_JOBS:
        raise ValueError(f"expected task.type to be one of {', '.join(KNOWN_JOBS)}, received {task_type!r}.")
    if task_type not in jobs:
        # The evaluator takes no part in the training, and only some versions of Kubeflow list it.
        if task_type == "evaluator" and jobs:
            return
        raise ValueError(
            f"expected task.type to be one of the jobs in cluster ({', '.join(jobs) or 'there are none'}), "
            f"received {task_type!r}; add cluster.{task_type} with at least one address or correct the task type."
        )
    known = indices.get(task_type, range(len(jobs[task_type])))
    if task_index not in known:
        span = f"0 to {len(known) - 1}" if isinstance(known, range) else ", ".join(map(str, known))
        raise ValueError(
            f"expected task.index to be an index of cluster.{task_type}, which has {span}, received {task_index}; "
            "correct the index or add the address of this task."
        )


def _check_roles(jobs: Mapping[str, tuple[str, ...]], *, partial: bool) -> None:
    # If only a part of the cluster is listed, the missing jobs may exist all the same.
    if partial or not jobs:
        return
    has_chief = any(job in jobs for job in CHIEF_JOBS)
    if "ps" in jobs and not has_chief:
        raise ValueError(
            f"expected cluster to have a chief, which coordinates the workers and ps, received {', '.join(jobs)}; "
            "add cluster.chief with one address."
        )
    if "worker" not in jobs and ("ps" in jobs or not has_chief):
        raise ValueError(
            f"expected cluster to have workers that train, received {', '.join(jobs)}; "
            "add cluster.worker with at least one address."
        )
