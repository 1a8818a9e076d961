"""ClusterConfig: the processes that train together, and the task of this process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tfdist.cluster import environments, tf_config
from tfdist.cluster.meeting import TIMEOUT_SECONDS, Meeting
from tfdist.cluster.tasks import CHIEF_JOBS, Task
from tfdist.cluster.validation import as_addresses, check_indices, tasks_of, validate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """Describes the processes of a cluster and the task of this process; without jobs, there is a single process.

    Args:
        jobs: the addresses (`host:port`) of every job; the known jobs are chief (or master), worker, ps and evaluator.
            Jobs without addresses are removed.
        task_type: the job of this process; None in a single process.
        task_index: the index of this process within its job.
        indices: the task indices of each job that is listed only in part, such as {"worker": (1,)} for a worker under
            Kubeflow's enableDynamicWorker. If a job has indices, a missing chief or worker is not an error, and
            num_workers and peers() count only the listed tasks.
        source: what describes the cluster, such as "Slurm", for messages; clusters from different sources may be equal.

    Raises:
        ValueError: if the cluster is not valid; the message names the field, the expectation and the received value.

    Example:
        >>> config = ClusterConfig(jobs={"worker": ["a:2222", "b:2222"]}, task_type="worker", task_index=1)
        >>> config.num_workers, config.is_chief, config.task_name, config.address
        (2, False, 'worker 1', 'b:2222')
        >>> ClusterConfig.from_tf_config(config.to_tf_config()) == config
        True
        >>> config.is_distributed, [peer.name for peer in config.peers()]
        (True, ['worker 0'])
        >>> single = ClusterConfig()
        >>> single.num_workers, single.is_chief, single.is_distributed
        (1, True, False)
    """

    jobs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    task_type: str | None = None
    task_index: int = 0
    indices: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    source: str = dataclasses.field(default="", compare=False)

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
        # Indices 0 to n-1 mean the same as no indices. They are removed, so that equal clusters compare equal. They are
        # kept if there is a ps and no chief: under enableDynamicWorker, worker 0 knows only this part of the cluster.
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
        return _rebuild, (dict(self.jobs), self.task_type, self.task_index, dict(self.indices), self.source)

    @classmethod
    def from_tf_config(cls, text: str | None = None) -> ClusterConfig:
        """Returns the cluster that a TF_CONFIG describes.

        Args:
            text: the JSON text; None reads the environment variable TF_CONFIG.

        Raises:
            ValueError: if the text describes no valid cluster; the message names the field, the expectation and the
                received value.

        Example:
            >>> text = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 2}}'
            >>> ClusterConfig.from_tf_config(text)
            Traceback (most recent call last):
            ...
            ValueError: TF_CONFIG: expected task.index to be an index of cluster.worker, which has 0 to 1, ...
        """
        document = tf_config.load(tf_config.read_environment() if text is None else text)
        return cls._from_document(document)

    @classmethod
    def detect(
        cls, variables: Mapping[str, str] | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> ClusterConfig:
        """Returns the cluster that TF_CONFIG or a scheduler describes, or a single process if there is none.

        TF_CONFIG comes first, then the variables of Vertex AI, LSF, MPI launchers, SageMaker, Slurm, Kubeflow Trainer
        and Kubernetes. The variable TFDIST_ENVIRONMENT chooses one of them: tf_config, vertex, lsf, mpi, sagemaker,
        slurm, trainer, kubernetes, or none.

        The ranks of an MPI launcher and the tasks of jsrun do not know each other's addresses. They exchange them in
        the first call, for which every rank has to make the call; later calls return the same cluster.

        Args:
            variables: the environment variables; None reads those of this process.
            timeout_seconds: how long the ranks of an MPI launcher wait for each other.

        Raises:
            ValueError: if the variables describe a cluster that is not valid; the message names the variable.
            TimeoutError: if ranks of an MPI launcher are absent at the deadline; the message names them.

        Example:
            >>> variables = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
            >>> cluster = ClusterConfig.detect(variables)
            >>> cluster.task_name, cluster.num_workers, cluster.source
            ('worker 1', 2, 'SageMaker')
            >>> ClusterConfig.detect({"TF_CONFIG": '{"environment": "cloud"}'}).is_distributed
            False
        """
        found, source = environments.find(os.environ if variables is None else variables)
        fields = _meet(found, timeout_seconds) if isinstance(found, Meeting) else found
        try:
            return cls(**fields._asdict(), source=source)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> ClusterConfig:
        try:
            return cls(**tf_config.parse(document)._asdict())
        except ValueError as error:
            # The prefix says where the user finds the field that the message names.
            raise ValueError(f"TF_CONFIG: {error}") from None

    def to_tf_config(self) -> str:
        """Returns the TF_CONFIG text of this cluster; from_tf_config turns the text into an equal ClusterConfig.

        Example:
            >>> ClusterConfig(jobs={"worker": ["a:1"]}, task_type="worker").to_tf_config()
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
        """
        return tf_config.render(tf_config.Fields(dict(self.jobs), dict(self.indices), self.task_type, self.task_index))

    @property
    def num_workers(self) -> int:
        """The number of tasks that train.

        These are the workers in a cluster with ps, else the chief and the workers. A single process counts as one.
        """
        if not self.jobs:
            return 1
        training_jobs = ("worker",) if self.has_parameter_servers else (*CHIEF_JOBS, "worker")
        return sum(len(self.jobs.get(job, ())) for job in training_jobs)

    @property
    def is_chief(self) -> bool:
        """Whether this task writes the files that only one task may write.

        True for the chief (or master), for worker 0 of a cluster without a chief, and for a single process.
        """
        if not self.jobs or self.task_type in CHIEF_JOBS:
            return True
        # A cluster with ps always has a chief, even if the part of the cluster that this process knows has none.
        has_chief = self.has_parameter_servers or any(job in self.jobs for job in CHIEF_JOBS)
        return not has_chief and self.task_type == "worker" and self.task_index == 0

    @property
    def is_coordinator(self) -> bool:
        """Whether this task is the chief of a cluster with parameter servers, which runs the training program."""
        return self.has_parameter_servers and self.task_type in CHIEF_JOBS

    @property
    def is_evaluator(self) -> bool:
        """Whether this task is the evaluator, which takes no part in the training."""
        return self.task_type == "evaluator"

    @property
    def is_distributed(self) -> bool:
        """Whether more than one process takes part in the training; the evaluator does not count.

        A cluster of one worker is therefore not distributed. `jobs` is empty if there is no cluster at all.
        """
        # If a job is listed only in part, its other tasks exist as well.
        return bool(self.indices) or sum(len(self.jobs[job]) for job in self.jobs if job != "evaluator") > 1

    @property
    def has_parameter_servers(self) -> bool:
        """Whether the cluster has the job ps, whose tasks hold the variables."""
        return "ps" in self.jobs

    @property
    def address(self) -> str | None:
        """Host and port of this task; None for a single process, and for an evaluator that is not in the cluster."""
        mine = (self.task_type, self.task_index)
        return next((task.address for task in tasks_of(self.jobs, self.indices) if task[:2] == mine), None)

    @property
    def task_name(self) -> str:
        """The name of this process in messages, such as "worker 1"."""
        return "single process" if self.task_type is None else f"{self.task_type} {self.task_index}"

    def peers(self) -> tuple[Task, ...]:
        """Returns all other tasks that take part in the training; returns no tasks if this task is the evaluator.

        Example:
            >>> config = ClusterConfig(jobs={"chief": ["a:1"], "worker": ["b:1"]}, task_type="worker")
            >>> config.peers()
            (Task(job='chief', index=0, address='a:1'),)
        """
        if self.is_evaluator:
            return ()
        mine = (self.task_type, self.task_index)
        return tuple(task for task in tasks_of(self.jobs, self.indices) if task.job != "evaluator" and task[:2] != mine)


def _meet(meeting: Meeting, timeout_seconds: float) -> tf_config.Fields:
    # Most processes have a cluster with addresses, or none, and start faster without this import.
    from tfdist.cluster.rendezvous import meet

    return meet(meeting, timeout_seconds=timeout_seconds)


def _rebuild(
    jobs: Mapping[str, tuple[str, ...]],
    task_type: str | None,
    task_index: int,
    indices: Mapping[str, tuple[int, ...]],
    source: str,
) -> ClusterConfig:
    return ClusterConfig(jobs=jobs, task_type=task_type, task_index=task_index, indices=indices, source=source)
