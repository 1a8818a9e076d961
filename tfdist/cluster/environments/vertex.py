"""The cluster of a Vertex AI custom training job, whose worker pools CLUSTER_SPEC lists."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.environments.variables import json_of
from tfdist.cluster.tf_config import SINGLE_PROCESS, Fields, parse

_JOBS = {"workerpool0": "chief", "workerpool1": "worker", "workerpool2": "ps", "workerpool3": "evaluator"}


def is_here(environment: Mapping[str, str]) -> bool:
    """Returns whether Vertex AI started this process.

    Args:
        environment: the environment variables.

    Example:
        >>> is_here({"CLUSTER_SPEC": "{}"})
        True
    """
    return bool(environment.get("CLUSTER_SPEC", "").strip())


def read(environment: Mapping[str, str]) -> Fields:
    """Returns the cluster of the training job.

    The first pool is the chief, the second one has the workers, the third one the parameter servers, and the fourth one
    the evaluator.

    Args:
        environment: the environment variables.

    Raises:
        ValueError: if CLUSTER_SPEC is no cluster; the message names the field.

    Source:
        "Distributed training" in the documentation of Vertex AI, "Format of CLUSTER_SPEC".

    Example:
        >>> read({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:1"], "workerpool1": ["b:1"]}, "task": '
        ...                       '{"type": "workerpool1", "index": 0}}'})
        Fields(jobs={'chief': ('a:1',), 'worker': ('b:1',)}, indices={}, task_type='worker', task_index=0)
    """
    shown = '{"cluster": {"workerpool0": ["host:port"]}, "task": {"type": "workerpool0", "index": 0}}'
    document = json_of(environment, "CLUSTER_SPEC", kind=dict, shown=shown)
    document.pop("open_ports", None)
    try:
        fields = parse(document)
        unknown = sorted({*fields.jobs, *filter(None, [fields.task_type])} - set(_JOBS))
        if unknown:
            raise ValueError(f"expected the worker pools {', '.join(_JOBS)}, received {', '.join(unknown)}.")
    except ValueError as error:
        raise ValueError(f"CLUSTER_SPEC: {error}") from None
    jobs = {_JOBS[pool]: addresses for pool, addresses in fields.jobs.items() if addresses}
    if set(jobs) == {"chief"}:
        return SINGLE_PROCESS
    return Fields(jobs, {}, _JOBS[fields.task_type or "workerpool0"], fields.task_index)
