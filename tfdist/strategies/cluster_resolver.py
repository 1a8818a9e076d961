"""Converts a ClusterConfig to the cluster resolver that TensorFlow's strategies take."""

from __future__ import annotations

import tensorflow as tf

from tfdist.cluster import ClusterConfig

# TensorFlow's name for the task that Kubeflow may call master.
_TENSORFLOW_JOB = {"master": "chief"}


def cluster_resolver(cluster: ClusterConfig, *, num_gpus: int) -> tf.distribute.cluster_resolver.ClusterResolver:
    """Returns a resolver for this task of the cluster.

    Args:
        cluster: the cluster, and the task of this process in it.
        num_gpus: how many GPUs this process has.
    """
    if not cluster.jobs:
        # The empty cluster is passed explicitly, so that TensorFlow does not read TF_CONFIG itself.
        return tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({}), num_accelerators={"GPU": num_gpus}
        )
    jobs = {
        _TENSORFLOW_JOB.get(job, job): dict(
            zip(cluster.indices.get(job, range(len(addresses))), addresses, strict=True)
        )
        for job, addresses in cluster.jobs.items()
        if job != "evaluator"
    }
    task_type = cluster.task_type or "worker"
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(jobs),
        task_type=_TENSORFLOW_JOB.get(task_type, task_type),
        task_id=cluster.task_index,
        num_accelerators={"GPU": num_gpus},
        rpc_layer="grpc",
    )
