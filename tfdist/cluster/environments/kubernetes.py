"""The cluster of an Indexed Job or a JobSet of Kubernetes: one worker in each pod.

Kubernetes tells a pod its index (JOB_COMPLETION_INDEX) and its name (HOSTNAME), but not how many pods there are and
which headless service names them. The manifest has to say both. The pods of a Job that says neither do not train
together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.cluster.environments.variables import number_of, text_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields

PODS = "TFDIST_PODS"
SUBDOMAIN = "TFDIST_SUBDOMAIN"
_PORT = 2222
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether this process runs in a pod of an Indexed Job or a JobSet whose pods train together.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"JOB_COMPLETION_INDEX": "0"})
        False
    """
    return bool(environment.get("JOB_COMPLETION_INDEX") and environment.get(PODS))


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster of the Job.

    The manifest sets TFDIST_PODS to the number of completions, and TFDIST_SUBDOMAIN to the `subdomain` of the pods,
    which is the name of the headless service.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if a variable is missing or contradicts another one; the message names it.

    Source:
        "Job with Pod-to-Pod Communication" in the documentation of Kubernetes; JobSet's `network.enableDNSHostnames`.

    Example:
        >>> variables = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"}
        >>> read({**variables, "TFDIST_PODS": "2", "TFDIST_SUBDOMAIN": "svc"}).jobs
        {'worker': ('train-0.svc:2222', 'train-1.svc:2222')}
    """
    pods = number_of(environment, PODS)
    index = number_of(environment, "JOB_COMPLETION_INDEX", below=max(pods, 1))
    if pods <= 1:
        return SINGLE_PROCESS
    subdomain, name = text_of(environment, SUBDOMAIN), text_of(environment, "HOSTNAME")
    if not _LABEL.fullmatch(subdomain):
        raise ValueError(f"expected {SUBDOMAIN} to be the name of a headless service, received {subdomain!r}.")
    if not name.endswith(f"-{index}"):
        raise ValueError(
            f"expected HOSTNAME to end with -{index}, the index of this pod, received {name!r}; do not set "
            "setHostnameAsFQDN or a hostname of your own."
        )
    job = name.removesuffix(f"-{index}")
    addresses = tuple(f"{job}-{pod}.{subdomain}:{_PORT}" for pod in range(pods))
    return Fields({"worker": addresses}, {}, "worker", index)
