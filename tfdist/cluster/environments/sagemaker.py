"""The cluster of an Amazon SageMaker training job: one worker on each host."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.environments.variables import json_of, text_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

_PORT = 2222


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether SageMaker's training toolkit started this process.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"})
        True
    """
    return bool(environment.get("SM_HOSTS") or environment.get("SM_CURRENT_HOST"))


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster of the training job.

    All hosts have the same list. TensorFlow uses all GPUs of a host in one process.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one; the message names it.

    Source:
        ENVIRONMENT_VARIABLES.md of aws/sagemaker-training-toolkit.

    Example:
        >>> read({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}).jobs
        {'worker': ('algo-1:2222', 'algo-2:2222')}
    """
    hosts = json_of(environment, "SM_HOSTS", kind=list, shown='["algo-1", "algo-2"]')
    own = text_of(environment, "SM_CURRENT_HOST")
    if not hosts or not all(isinstance(host, str) and host for host in hosts) or len(set(hosts)) != len(hosts):
        raise ValueError(f"expected different names of hosts in SM_HOSTS, received {environment['SM_HOSTS']!r}.")
    if own not in hosts:
        raise ValueError(f"expected SM_CURRENT_HOST to be one of SM_HOSTS ({', '.join(hosts)}), received {own!r}.")
    if len(hosts) == 1:
        return SINGLE_PROCESS
    return Fields({"worker": tuple(f"{host}:{_PORT}" for host in hosts)}, {}, "worker", hosts.index(own))
