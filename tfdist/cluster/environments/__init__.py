"""Finds the cluster of this process in the environment variables of a scheduler, one file a scheduler.

Each file has two pure functions of a mapping of environment variables: `is_here` says whether the scheduler started
this process, and `read` returns the cluster, or raises a ValueError that names the variable. If the scheduler tells no
addresses, `read` returns a Meeting: where the processes exchange them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from tfdist.cluster.environments import (
    kubernetes,
    lsf,
    mpi,
    sagemaker,
    slurm,
    tf_config_variable,
    trainer,
    vertex,
)
from tfdist.cluster.meeting import Meeting
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

FORCED = "TFDIST_ENVIRONMENT"
_NONE = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment:
    """A way to describe a cluster.

    Attributes:
        title: what the log calls it.
        is_here: whether it describes a cluster for this process.
        read: returns the cluster, or where its processes meet.
    """

    title: str
    is_here: Callable[[Mapping[str, str]], bool]
    read: Callable[[Mapping[str, str]], Fields | Meeting]


ENVIRONMENTS = {
    # TF_CONFIG is first, so that it overrides what a scheduler says. Kubeflow's TFJob, Vertex AI and Ray write it.
    "tf_config": Environment(title="TF_CONFIG", is_here=tf_config_variable.is_here, read=tf_config_variable.read),
    "vertex": Environment(title="Vertex AI", is_here=vertex.is_here, read=vertex.read),
    # MPI launchers come before the schedulers whose jobs they run in: their ranks have the variables of the job, or
    # those of the launcher's daemons, as well. jsrun of LSF sets the variables of Open MPI.
    "lsf": Environment(title="LSF", is_here=lsf.is_here, read=lsf.read),
    "mpi": Environment(title="MPI", is_here=mpi.is_here, read=mpi.read),
    "sagemaker": Environment(title="SageMaker", is_here=sagemaker.is_here, read=sagemaker.read),
    "slurm": Environment(title="Slurm", is_here=slurm.is_here, read=slurm.read),
    "trainer": Environment(title="Kubeflow Trainer", is_here=trainer.is_here, read=trainer.read),
    "kubernetes": Environment(title="Kubernetes", is_here=kubernetes.is_here, read=kubernetes.read),
}


def find(variables: Mapping[str, str]) -> tuple[Fields | Meeting, str]:
    """Returns the cluster of this process, or where its processes meet, and what describes it.

    Without a scheduler, this is a single process, described by "".

    TFDIST_ENVIRONMENT names the environment to read; "none" is a single process.

    Args:
        variables: the environment variables.

    Raises:
        ValueError: if the environment describes no valid cluster; the message names the variable.

    Example:
        >>> find({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"})[1]
        'SageMaker'
        >>> find({})
        (Fields(jobs={}, indices={}, task_type=None, task_index=0), '')
    """
    forced = variables.get(FORCED, "").strip()
    if forced == _NONE:
        return SINGLE_PROCESS, ""
    if forced and forced not in ENVIRONMENTS:
        raise ValueError(f"expected {FORCED} to be one of {', '.join([*ENVIRONMENTS, _NONE])}, received {forced!r}.")
    for name, environment in ENVIRONMENTS.items():
        if name == forced or (not forced and environment.is_here(variables)):
            return environment.read(variables), environment.title
    return SINGLE_PROCESS, ""


def incarnation(source: str, variables: Mapping[str, str]) -> str | None:
    """Returns a word that the tasks which a scheduler has started together share; None if it tells none.

    Args:
        source: what describes the cluster, as `find` returns it.
        variables: the environment variables.

    Raises:
        ValueError: if a variable is no number; the message names it.

    Example:
        >>> incarnation("Slurm", {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"})
        'slurm-7-0.0'
        >>> incarnation("TF_CONFIG", {}) is None
        True
    """
    return slurm.incarnation(variables) if source == ENVIRONMENTS["slurm"].title else None
