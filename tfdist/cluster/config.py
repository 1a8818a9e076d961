"""ClusterConfig: which processes train together, and which of them this one is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tfdist.cluster import tf_config
from tfdist.cluster.tasks import CHIEF_JOBS, Task
from tfdist.cluster.validation import as_addresses, check_indices, tasks_of, validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The processes of a cluster and this process's place among them; without jobs, a single process.

    Args:
        jobs: the addresses (`host:port`) of every job; the known jobs are chief (or master), worker, ps and evaluator.
            A job without addresses is left out.
        task_type: the job of this process; None in a single process.
        task_index: its index within the job.
        indices: the task indices of a job of which this process knows only some tasks, such as {"worker": (1,)} for a
            worker under Kubeflow's enableDynamicWorker. While there is one, the rest of the cluster is taken on trust:
            a missing chief or worker is no error, and num_workers and peers() count only what is listed.

    Raises:
        ValueError: if a rule of clusters is broken; the message names the field, what was expected and received.

    Example:
        >>> config = ClusterConfig(jobs={"worker": ["a:2222", "b:2222"]}, task_type="worker", task_index=1)
        >>> config.num_workers, config.is_chief, config.task_name, config.address
        (2, False, 'worker 1', 'b:2222')
        >>> ClusterConfig.from_tf_config(config.to_tf_config()) == config
        True
        >>> ClusterConfig().num_workers, ClusterConfig().is_chief, ClusterConfig().is_distributed
        (1, True, False)
    """

    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    task_type: str | None = None
    task_index: int = 0
    indices: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs = {job: as_addresses(f"cluster.{job}", addresses) for job, addresses in self.jobs.items()}
        if self.task_type is not None and jobs.get(self.task_type) == ():
            raise ValueError(
                f"expected cluster.{self.task_type} to have at least one address, since this process is "
                f"{self.task_type} {self.task_index}, received an empty list; add the address of this task."
            )
        jobs = {job: addresses for job, addresses in jobs.items() if addresses}
        indices = {job: tuple(own) for job, own in self.indices.items() if own}
        check_indices(jobs, indices)
        for job, own in indices.items():
            in_order = sorted(zip(own, jobs[job], strict=True), key=lambda pair: pair[0])
            indices[job], jobs[job] = tuple(index for index, _ in in_order), tuple(address for _, address in in_order)
        # Indices that leave none out say the same as no indices, so that equal clusters compare equal; except in a
        # cluster with ps and no chief, which is no whole cluster: it is what worker 0 sees of one.
        if not ("ps" in jobs and not any(job in jobs for job in CHIEF_JOBS)):
            indices = {job: own for job, own in indices.items() if own != tuple(range(len(own)))}
        validate(jobs, indices, task_type=self.task_type, task_index=self.task_index)
        object.__setattr__(self, "jobs", MappingProxyType(jobs))
        object.__setattr__(self, "indices", MappingProxyType(indices))

    def __hash__(self) -> int:
        # A mapping proxy has no hash before Python 3.12, and equality does not look at the order of jobs.
        return hash((frozenset(self.jobs.items()), frozenset(self.indices.items()), self.task_type, self.task_index))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy cannot be pickled or deep-copied.
        return _rebuild, (dict(self.jobs), self.task_type, self.task_index, dict(self.indices))

    @classmethod
    def from_tf_config(cls, text: str | None = None) -> ClusterConfig:
        """Reads a TF_CONFIG.

        Args:
            text: the JSON text; None reads the environment variable TF_CONFIG.

        Raises:
            ValueError: if it describes no cluster; the message names the field, what was expected and received.

        Example:
            >>> text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}'
            >>> ClusterConfig.from_tf_config(text)
            Traceback (most recent call last):
            ...
            ValueError: TF_CONFIG: expected task.index to be one of cluster.worker, which has 0 to 1, received 2; ...
        """
        document = tf_config.load(tf_config.read_environment() if text is None else text)
        return cls._from_document(document)

    @classmethod
    def detect(cls) -> ClusterConfig:
        """Reads TF_CONFIG from the environment; a single process if it is not set, blank, or lists no cluster.

        Raises:
            ValueError: if TF_CONFIG is there but describes no valid cluster.

        Example:
            >>> import os
            >>> os.environ["TF_CONFIG"] = '{"environment": "cloud"}'
            >>> ClusterConfig.detect().is_distributed
            False
            >>> del os.environ["TF_CONFIG"]
        """
        text = tf_config.read_environment()
        if text is None:
            return cls()
        document = tf_config.load(text)
        return cls._from_document(document) if tf_config.has_cluster(document) else cls()

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> ClusterConfig:
        try:
            return cls(**tf_config.parse(document)._asdict())
        except ValueError as error:
            # Where the fields were written down is half of what a person needs to find them.
            raise ValueError(f"TF_CONFIG: {error}") from None

    def to_tf_config(self) -> str:
        """Returns the TF_CONFIG text that reads as this cluster.

        Example:
            >>> ClusterConfig(jobs={"worker": ["a:1"]}, task_type="worker").to_tf_config()
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
        """
        return tf_config.render(tf_config.Fields(dict(self.jobs), dict(self.indices), self.task_type, self.task_index))

    @property
    def num_workers(self) -> int:
        """The tasks that train: with ps the workers, else the chief and the workers; a single process is one."""
        if not self.jobs:
            return 1
        trains = ("worker",) if self.has_parameter_servers else (*CHIEF_JOBS, "worker")
        return sum(len(self.jobs.get(job, ())) for job in trains)

    @property
    def is_chief(self) -> bool:
        """Whether this task writes what is written once: the chief (or master), else worker 0, or the only process."""
        if not self.jobs or self.task_type in CHIEF_JOBS:
            return True
        # A cluster with ps has a chief, even where this task's view of it leaves the chief out.
        led_by_worker = not self.has_parameter_servers and not any(job in self.jobs for job in CHIEF_JOBS)
        return led_by_worker and self.task_type == "worker" and self.task_index == 0

    @property
    def is_coordinator(self) -> bool:
        """Whether this task runs the training program of a cluster with parameter servers."""
        return self.has_parameter_servers and self.task_type in CHIEF_JOBS

    @property
    def is_evaluator(self) -> bool:
        """Whether this task evaluates beside the training, in which it takes no part."""
        return self.task_type == "evaluator"

    @property
    def is_distributed(self) -> bool:
        """Whether there is a cluster, if only of one worker."""
        return bool(self.jobs)

    @property
    def has_parameter_servers(self) -> bool:
        """Whether the cluster has tasks that hold variables for the others."""
        return "ps" in self.jobs

    @property
    def address(self) -> str | None:
        """This task's own `host:port`; None in a single process, or for an evaluator that the cluster does not list."""
        mine = (self.task_type, self.task_index)
        return next((task.address for task in tasks_of(self.jobs, self.indices) if task[:2] == mine), None)

    @property
    def task_name(self) -> str:
        """What messages call this process, such as "worker 1"."""
        return "single process" if self.task_type is None else f"{self.task_type} {self.task_index}"

    def peers(self) -> tuple[Task, ...]:
        """Returns the tasks that this one trains with, itself left out; an evaluator has none and is nobody's.

        Example:
            >>> config = ClusterConfig(jobs={"chief": ["a:1"], "worker": ["b:1"]}, task_type="worker")
            >>> config.peers()
            (Task(job='chief', index=0, address='a:1'),)
        """
        if self.is_evaluator:
            return ()
        mine = (self.task_type, self.task_index)
        return tuple(task for task in tasks_of(self.jobs, self.indices) if task.job != "evaluator" and task[:2] != mine)


def _rebuild(
    jobs: Mapping[str, tuple[str, ...]],
    task_type: str | None,
    task_index: int,
    indices: Mapping[str, tuple[int, ...]],
) -> ClusterConfig:
    return ClusterConfig(jobs=jobs, task_type=task_type, task_index=task_index, indices=indices)
