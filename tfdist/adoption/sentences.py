"""What the log says about a strategy that was adopted."""

from __future__ import annotations

from typing import Any

from tfdist import keras_compat
from tfdist.adoption.names import public_name
from tfdist.allreduce.options_of import all_reduce_of
from tfdist.cluster import ClusterConfig


def adopted_sentence(kind: str, strategy: Any, cluster: ClusterConfig) -> str:
    """Returns the line of the log about a strategy.

    Args:
        kind: the name of the strategy in create_strategy.
        strategy: the strategy.
        cluster: the cluster that this process is in.
    """
    parts = [_what(kind, strategy, cluster)]
    if kind in ("mirrored", "multi_worker_mirrored"):
        options = all_reduce_of(strategy)
        parts.append(f"all-reduce {options.algorithm}")
        if options.timeout_seconds is not None:
            parts.append(f"a sum waits at most {options.timeout_seconds:g} s for a worker")
    parts.append(f"{_count(len(keras_compat.applied_mends()), 'mend')} in place")
    return f"adopted {public_name(type(strategy))}: {', '.join(parts)}"


def _what(kind: str, strategy: Any, cluster: ClusterConfig) -> str:
    replicas = _count(strategy.num_replicas_in_sync, "replica")
    source = f" ({cluster.source})" if cluster.source and cluster.jobs else ""
    if kind == "parameter_server":
        return f"{_count(cluster.num_workers, 'worker')} and {len(cluster.jobs['ps'])} ps{source}"
    if kind == "multi_worker_mirrored":
        return f"{_count(cluster.num_workers, 'worker')}{source}, {replicas}"
    alone = ""
    if cluster.num_workers > 1 and not cluster.is_evaluator and kind != "tpu":
        alone = f" of this process alone, although the cluster has {_count(cluster.num_workers, 'worker')}{source}"
    return f"{replicas}{alone}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
