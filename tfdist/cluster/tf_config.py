"""Reads and writes TF_CONFIG, in the dialects that schedulers and launchers use.

Sources: TensorFlow's TFConfigClusterResolver and ClusterSpec; the TFJob controller of Kubeflow's training operator
(`environment`, and `sparseCluster` under enableDynamicWorker); AI Platform (`master`, `job`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tfdist._log import get_logger
from tfdist.cluster.validation import as_addresses, check_index

VARIABLE = "TF_CONFIG"
_READ = frozenset({"cluster", "sparseCluster", "task"})
# Known fields that training with TensorFlow 2 does not need. "job" is a field of AI Platform, the others of TensorFlow.
_IGNORED = frozenset({"environment", "rpc_layer", "session_master", "eval_session_master", "job"})


class Fields(NamedTuple):
    """The content of a TF_CONFIG as the fields of ClusterConfig, not yet validated.

    Args:
        jobs: the addresses of each job.
        indices: the task indices of the jobs that are listed only in part.
        task_type: the job of this process; None if TF_CONFIG names no task.
        task_index: the index of this process within its job.

    Example:
        >>> Fields({"worker": ("a:1",)}, {}, "worker", 0).task_type
        'worker'
    """

    jobs: dict[str, tuple[str, ...]]
    indices: dict[str, tuple[int, ...]]
    task_type: str | None
    task_index: int


SINGLE_PROCESS = Fields({}, {}, None, 0)
"""A process that belongs to no cluster."""


def read_environment() -> str | None:
    """Returns the text of TF_CONFIG, or None if it is not set or blank."""
    text = os.environ.get(VARIABLE, "")
    return text if text.strip() else None


def load(text: str | None) -> dict[str, Any]:
    """Returns the JSON object in the text.

    Raises:
        ValueError: if the text is not a JSON object; for broken JSON the message names the position.

    Example:
        >>> load('{"cluster": {}')
        Traceback (most recent call last):
        ...
        ValueError: expected TF_CONFIG to be a JSON object, received broken JSON at line 1, column 15 ...
    """
    if text is None or not text.strip():
        raise ValueError(
            "expected TF_CONFIG to be a JSON object with cluster and task, received nothing; "
            "set TF_CONFIG for this process, or use ClusterConfig.detect() if one process may run alone."
        )
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 10) : error.pos + 10]
        raise ValueError(
            f"expected TF_CONFIG to be a JSON object, received broken JSON at line {error.lineno}, "
            f"column {error.colno} ({error.msg}, near {near!r}); correct the text."
        ) from None
    if not isinstance(document, dict):
        raise ValueError(
            f"expected TF_CONFIG to be a JSON object, received {_kind(document)}; write {{...}} with cluster and task."
        )
    return document


def has_cluster(document: Mapping[str, Any]) -> bool:
    """Returns whether a TF_CONFIG object lists any task; schedulers may write an empty cluster for a single process.

    Example:
        >>> has_cluster({"environment": "cloud", "cluster": {}})
        False
    """
    return any(document.get(key) not in (None, {}) for key in ("cluster", "sparseCluster"))


def parse(document: Mapping[str, Any]) -> Fields:
    """Returns the fields of the cluster that a TF_CONFIG object describes.

    Raises:
        ValueError: if a field is missing or has the wrong type.

    Example:
        >>> parse({"cluster": {"worker": {"1": "b:1"}}, "task": {"type": "worker", "index": "1"}}).indices
        {'worker': (1,)}
    """
    unknown = sorted(set(document) - _READ - _IGNORED)
    if unknown:
        get_logger().warning("TF_CONFIG has unknown fields, which are ignored: %s.", ", ".join(unknown))
    if document.get("cluster") == {} and not has_cluster(document):
        # TensorFlow then trains in a single process, whatever the task type is.
        return SINGLE_PROCESS
    if not has_cluster(document):
        raise ValueError(
            f"expected a field cluster, received {_keys(document)}; "
            'add it, as in {"cluster": {"worker": ["host:port", ...]}}.'
        )
    task_type, task_index = _parse_task(document)
    if document.get("cluster") not in (None, {}):
        jobs, indices = _parse_cluster(document["cluster"], "cluster")
    else:
        jobs, indices = _parse_sparse(document["sparseCluster"], task_type, task_index)
    return Fields(jobs, indices, task_type, task_index)


def render(fields: Fields) -> str:
    """Returns the TF_CONFIG text with these fields, without checking that the cluster is valid.

    Example:
        >>> render(Fields({"worker": ("a:1",)}, {}, "worker", 0))
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
        >>> render(Fields({}, {}, None, 0))
        '{"cluster": {}}'
    """
    # A job that is listed in part becomes a map under "cluster", because TensorFlow does not read "sparseCluster".
    document: dict[str, Any] = {
        "cluster": {
            job: dict(zip(map(str, fields.indices[job]), addresses, strict=True))
            if job in fields.indices
            else list(addresses)
            for job, addresses in fields.jobs.items()
        }
    }
    if fields.task_type is not None:
        document["task"] = {"type": fields.task_type, "index": fields.task_index}
    return json.dumps(document)


def _parse_task(document: Mapping[str, Any]) -> tuple[str, int]:
    task = document.get("task")
    if task is None:
        raise ValueError(
            f"expected a field task beside cluster, received {_keys(document)}; "
            'add it, as in {"task": {"type": "worker", "index": 0}}.'
        )
    if not isinstance(task, dict):
        raise ValueError(f'expected task to be an object, received {_kind(task)}; write {{"type": ..., "index": ...}}.')
    for key, meaning in (("type", "the job of this process"), ("index", "its index in the job")):
        if task.get(key) is None:
            raise ValueError(f"expected task.{key}, {meaning}, received {_keys(task)}; add it.")
    if not isinstance(task["type"], str):
        raise ValueError(f"expected task.type to be a string, received {_kind(task['type'])}; write the job's name.")
    index = task["index"]
    if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 10:
        # Some launchers copy the index from an environment variable as a string, and TensorFlow accepts it.
        index = int(index)
    check_index("task.index", index)
    return task["type"], index


def _parse_cluster(cluster: object, key: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]]]:
    if not isinstance(cluster, dict):
        raise ValueError(
            f"expected {key} to be an object of jobs, received {_kind(cluster)}; "
            'write it as {"worker": ["host:port", ...]}.'
        )
    jobs: dict[str, tuple[str, ...]] = {}
    indices: dict[str, tuple[int, ...]] = {}
    for job, value in cluster.items():
        if isinstance(value, dict):
            mapped = _parse_map(f"{key}.{job}", value)
            jobs[job] = tuple(mapped.values())
            indices[job] = tuple(mapped)
        else:
            # A scheduler written in Go writes null for an empty list.
            jobs[job] = () if value is None else as_addresses(f"{key}.{job}", value)
    return jobs, indices


def _parse_sparse(
    cluster: object, task_type: str, task_index: int
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[int, ...]]]:
    jobs, indices = _parse_cluster(cluster, "sparseCluster")
    if task_type in jobs and task_type not in indices and len(jobs[task_type]) == 1:
        # Kubeflow gives a ps only its own address, in a list of one address, whatever its index is.
        indices[task_type] = (task_index,)
    return jobs, indices


def _parse_map(field: str, value: Mapping[str, Any]) -> dict[int, str]:
    for key in value:
        # "01" and "1" would be two entries for the same task.
        if not (key.isascii() and key.isdigit() and len(key) < 10 and str(int(key)) == key):
            raise ValueError(
                f'expected the keys of {field} to be task indices such as "0", received {key!r}; correct the key.'
            )
    return {int(key): value[key] for key in sorted(value, key=int)}


def _keys(document: Mapping[str, Any]) -> str:
    return f"only {', '.join(document)}" if document else "an empty object"


def _kind(value: object) -> str:
    names: Sequence[tuple[type, str]] = (
        (dict, "an object"),
        (list, "a list"),
        (str, "the string"),
        (bool, "the value"),
    )
    name = next((name for kind, name in names if isinstance(value, kind)), "the value")
    shown = json.dumps(value)
    return f"{name} {shown if len(shown) <= 60 else shown[:60] + '...'}"
