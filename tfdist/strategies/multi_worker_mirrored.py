"""MultiWorkerMirrored: a copy of the model on each device of each worker; gradients are all-reduced across workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce import AllReduceOptions
from tfdist.cluster import ClusterConfig
from tfdist.cluster.peer_startup import wait_for_peers
from tfdist.keras_compat.agreement.hooks import compare_workers
from tfdist.keras_compat.devices.one_cpu_for_each_worker import on_cpus
from tfdist.keras_compat.registry import apply_mends, prepare_keras
from tfdist.keras_compat.version import keras_in_use
from tfdist.strategies.all_reduce import communication_options, with_all_reduce
from tfdist.strategies.arguments import check_all_reduce, check_cluster, check_startup_timeout, read_devices
from tfdist.strategies.cluster_resolver import cluster_resolver
from tfdist.strategies.devices import choose_devices, grow_gpu_memory, has_split_gpus
from tfdist.strategies.first_touch import explain_late_start
from tfdist.strategies.once import note_strategy, refusing_second_strategy
from tfdist.strategies.own import making_strategy
from tfdist.strategies.start_deadline import start_deadline, time_to_start


@making_strategy()
def multi_worker_mirrored(
    *,
    cluster: ClusterConfig | None = None,
    devices: int | Sequence[str] | None = None,
    all_reduce: AllReduceOptions | None = None,
    startup_timeout_seconds: float = 300.0,
) -> tf.distribute.Strategy:
    """Returns a tf.distribute.MultiWorkerMirroredStrategy for this task of the cluster.

    Every worker runs the same program and calls this function first, before any other use of TensorFlow.

    Args:
        cluster: the cluster, and the task of this process in it; None reads TF_CONFIG. Without a TF_CONFIG the strategy
            has one worker.
        devices: number of devices of this worker; None for all its GPUs, or one CPU if it has no GPU. A worker without
            GPUs makes this number of logical CPUs; the number must be the same on every worker.
        all_reduce: how the workers' gradients are summed.
        startup_timeout_seconds: how long the start may take: until every other worker has answered, and until
            TensorFlow has connected them.

    Raises:
        ValueError: for options that the strategy cannot honour, and for a cluster with parameter servers.
        TimeoutError: if workers do not answer in time; the message names each of them with the reason.
        RuntimeError: if TensorFlow has already started; the message names the objects that started it. Also if this
            process has made a strategy of its cluster before.

    Example:
        >>> from tfdist.cluster import ClusterConfig
        >>> from tfdist.strategies import multi_worker_mirrored
        >>> jobs = {"chief": ["a:2222"], "worker": ["b:2222"], "ps": ["c:2222"]}
        >>> multi_worker_mirrored(cluster=ClusterConfig(jobs=jobs, task_type="chief"))
        Traceback (most recent call last):
        ...
        ValueError: expected a cluster of workers for the strategy multi_worker_mirrored, received one with job ps; ...
    """
    check_cluster(cluster)
    check_all_reduce(all_reduce)
    check_startup_timeout(startup_timeout_seconds)
    cluster = ClusterConfig.detect(timeout_seconds=startup_timeout_seconds) if cluster is None else cluster
    check_workers(cluster)
    grow_gpu_memory()
    names = _worker_devices(devices)
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    options = communication_options(all_reduce, num_gpus=num_gpus, is_split=has_split_gpus())
    resolver = cluster_resolver(cluster, num_gpus=num_gpus)

    def make() -> tf.distribute.Strategy:
        with _on_devices(names):
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver, communication_options=options)

    return start_workers(make, cluster=cluster, all_reduce=all_reduce, startup_timeout_seconds=startup_timeout_seconds)


def check_workers(cluster: ClusterConfig) -> None:
    """Raises ValueError for a cluster with parameter servers, and for the evaluator."""
    if cluster.has_parameter_servers:
        raise ValueError(
            "expected a cluster of workers for the strategy multi_worker_mirrored, received one with job ps; "
            "use 'parameter_server', or leave the ps out of the cluster."
        )
    if cluster.is_evaluator:
        raise ValueError(
            "expected a task that trains (chief or worker), received the evaluator; "
            "use 'auto' or 'one_device' in the evaluator."
        )


def start_workers(
    make: Callable[[], tf.distribute.Strategy],
    *,
    cluster: ClusterConfig,
    all_reduce: AllReduceOptions | None,
    startup_timeout_seconds: float,
) -> tf.distribute.Strategy:
    """Waits for the other workers, makes the strategy, and returns it, prepared for Keras.

    Args:
        make: calls the constructor of the strategy, which connects the workers.
        cluster: the cluster, and the task of this process in it.
        all_reduce: the options that the strategy is made with.
        startup_timeout_seconds: how long all of this may take.

    Raises:
        TimeoutError: if workers do not answer in time.
        RuntimeError: if TensorFlow has already started, or this process has made a strategy of its cluster before.
    """
    if not cluster.jobs:
        return prepare_keras(with_all_reduce(make(), all_reduce), "multi_worker_mirrored")
    start = time.monotonic()
    with refusing_second_strategy("multi_worker_mirrored", cluster):
        wait_for_peers(cluster, timeout_seconds=startup_timeout_seconds, log=get_logger().info)
    seconds, connecting = time_to_start(startup_timeout_seconds, since=start), time.monotonic()
    with start_deadline(cluster, timeout_seconds=seconds):
        try:
            strategy = make()
        except RuntimeError as error:
            if "program startup" not in str(error):
                raise
            raise RuntimeError(
                "expected the multi-worker strategy to be created before TensorFlow starts, but it has started: "
                + explain_late_start(error)
            ) from error
        note_strategy("multi_worker_mirrored", cluster)
        # with_all_reduce makes variables (of SumDeadline). Their initial values are broadcast, which needs all workers.
        strategy = with_all_reduce(
            strategy,
            all_reduce,
            num_workers=cluster.num_workers,
            timeout_seconds=seconds - (time.monotonic() - connecting),
        )
    prepare_keras(strategy, "multi_worker_mirrored")
    if cluster.num_workers > 1:
        compare_workers(strategy)
    return strategy


def _worker_devices(devices: int | Sequence[str] | None) -> list[str]:
    devices, gpus = read_devices(devices), len(tf.config.list_physical_devices("GPU"))
    if devices is not None and not isinstance(devices, int):
        raise ValueError(
            f"expected devices of the strategy multi_worker_mirrored to be a number, received {devices!r}; "
            "write the number of devices of each worker, or leave devices out to use all."
        )
    if devices is not None and gpus and devices != gpus:
        raise ValueError(
            f"expected devices of the strategy multi_worker_mirrored to be {gpus}, the GPUs of this worker, received "
            f"{devices}; hide the other GPUs with CUDA_VISIBLE_DEVICES, and leave devices out."
        )
    return choose_devices(devices)


def _on_devices(names: list[str]) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which the strategy is made; several logical CPUs become its devices."""
    if len(names) == 1 or names[0].startswith("GPU"):
        return contextlib.nullcontext()
    apply_mends("multi_worker_mirrored", keras_in_use(), None)
    return on_cpus(names)
