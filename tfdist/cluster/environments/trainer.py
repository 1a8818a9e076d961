"""The cluster of a TrainJob of Kubeflow Trainer v2, or of a PyTorchJob: one worker in each pod.

Both tell a pod its number, the number of pods and the address of the first pod, for torchrun. TrainJobs of the plain
runtime do not; see `kubernetes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.cluster.environments.variables import number_of, text_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

_PORT = 2222
_FIRST = re.compile(r"(?P<pods>[a-z0-9]([-a-z0-9]*[a-z0-9])?)-0(?P<service>(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+)")


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether Kubeflow Trainer started this process.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "job-node-0-0.job"})
        True
    """
    return all(environment.get(name) for name in ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR"))


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster of the TrainJob.

    The names of the pods differ in their last number only, as those of a JobSet do.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one; the message names it.

    Source:
        The torch plugin of kubeflow/trainer, which sets PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR.

    Example:
        >>> read({"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job"}).jobs
        {'worker': ('job-node-0-0.job:2222', 'job-node-0-1.job:2222')}
    """
    nodes = text_of(environment, "PET_NNODES")
    if ":" in nodes:
        raise ValueError(
            f"expected PET_NNODES to be a number, received {nodes!r}; set numNodes, and leave out the elastic policy."
        )
    count = number_of(environment, "PET_NNODES")
    index = number_of(environment, "PET_NODE_RANK", below=max(count, 1))
    local = {"LOCAL_WORLD_SIZE": "1", **environment}
    if number_of(local, "LOCAL_WORLD_SIZE") > 1:
        raise ValueError(
            f"expected one process in a pod, received LOCAL_WORLD_SIZE={environment['LOCAL_WORLD_SIZE']}; start the "
            "program with python instead of torchrun: it uses all GPUs of its pod."
        )
    if count <= 1:
        return SINGLE_PROCESS
    first = text_of(environment, "PET_MASTER_ADDR")
    found = _FIRST.fullmatch(first)
    if found is None:
        raise ValueError(
            f"expected PET_MASTER_ADDR to be the name of the first pod, such as job-node-0-0.job, received {first!r}; "
            "set TF_CONFIG."
        )
    addresses = tuple(f"{found['pods']}-{pod}{found['service']}:{_PORT}" for pod in range(count))
    return Fields({"worker": addresses}, {}, "worker", index)
