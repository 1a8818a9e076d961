"""Counts the workers that the environment describes, for messages; it reaches none of them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfdist.cluster import environments
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.meeting import Meeting
from tfdist.cluster.tasks import CHIEF_JOBS


def other_workers(variables: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Returns how many workers train besides this process, and what describes them.

    There are none for an evaluator, and in an environment that is not valid.

    Args:
        variables: the environment variables; None reads those of this process.

    Example:
        >>> other_workers({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"})
        (1, 'SageMaker')
        >>> other_workers({})
        (0, '')
    """
    try:
        found, source = environments.find(os.environ if variables is None else variables)
        if isinstance(found, Meeting):
            return found.size - 1, source
        cluster = ClusterConfig(**found._asdict())
    except ValueError:
        return 0, ""
    trains = cluster.num_workers > 1 and cluster.task_type in (*CHIEF_JOBS, "worker")
    return (cluster.num_workers - 1, source) if trains else (0, "")
