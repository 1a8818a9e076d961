"""A parameter-server cluster whose tasks are all servers of one process, so that steps can wait for Python code."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any

import tensorflow as tf

from tfdist.cluster import ClusterConfig


def start_cluster(*, workers: int, ps: int) -> ClusterConfig:
    """Starts the servers of workers and ps in this process; returns the cluster, in which this process is the chief."""
    names = ["chief", *["worker"] * workers, *["ps"] * ps]
    jobs: dict[str, list[str]] = {}
    for job, port in zip(names, _free_ports(len(names)), strict=True):
        jobs.setdefault(job, []).append(f"127.0.0.1:{port}")
    # Steps that wait keep threads; with only as many threads as cores the servers would wait for each other.
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=16)
    for job in ("worker", "ps"):
        for index in range(len(jobs[job])):
            tf.distribute.Server(
                tf.train.ClusterSpec(jobs), job_name=job, task_index=index, protocol="grpc", config=config, start=True
            )
    return ClusterConfig(jobs=jobs, task_type="chief", task_index=0)


def leave() -> Any:
    """Ends the process without waiting for the threads of its servers."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
