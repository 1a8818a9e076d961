"""Converts the cluster resolver that a program gives to a constructor to a ClusterConfig."""

from __future__ import annotations

import contextlib
from typing import Any

from tfdist.cluster import ClusterConfig
from tfdist.cluster.sockets import HeldPort


def cluster_of(resolver: Any) -> ClusterConfig:
    """Returns the cluster that a resolver describes; a cluster without jobs for a single process.

    Args:
        resolver: a tf.distribute.cluster_resolver.ClusterResolver.

    Raises:
        ValueError: if the cluster is not valid.

    Example:
        >>> import tensorflow as tf
        >>> resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        ...     tf.train.ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1)
        >>> cluster_of(resolver).task_name
        'worker 1'
    """
    source = type(resolver).__name__
    jobs, indices = _jobs_of(resolver)
    if not jobs:
        return ClusterConfig(source=source)
    try:
        return ClusterConfig(
            jobs=jobs,
            indices=indices,
            task_type=resolver.task_type,
            task_index=int(resolver.task_id or 0),
            source=source,
        )
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def coordinated_cluster(resolver: Any) -> ClusterConfig:
    """Returns the cluster of a coordinator; gives the coordinator an address if the resolver has none.

    A program that starts its workers and ps itself, as in TensorFlow's tutorial, has a cluster without a chief.

    Args:
        resolver: a tf.distribute.cluster_resolver.ClusterResolver.
    """
    jobs, indices = _jobs_of(resolver)
    if "ps" not in jobs or "chief" in jobs or resolver.task_type not in (None, "", "chief"):
        return cluster_of(resolver)
    # TensorFlow, too, takes a free port of this machine for a coordinator that has no address.
    with contextlib.closing(HeldPort()) as held:
        port = held.number
    return ClusterConfig(
        jobs={"chief": (f"127.0.0.1:{port}",), **jobs},
        indices=indices,
        task_type="chief",
        source=type(resolver).__name__,
    )


def _jobs_of(resolver: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    spec = resolver.cluster_spec()
    jobs = {job: tuple(spec.task_address(job, index) for index in spec.task_indices(job)) for job in spec.jobs}
    return jobs, {job: tuple(spec.task_indices(job)) for job in spec.jobs}
