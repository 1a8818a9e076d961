"""ParameterServer: variables on the ps tasks, steps run asynchronously on the workers, one coordinator.

The coordinator runs the user's program. On a worker or a ps the same program calls `parameter_server()`, which runs
TensorFlow's server, and ends the process when the coordinator is done.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.averaging.bound import keep_bound
from tfdist.averaging.staleness import Staleness, check_staleness
from tfdist.averaging.versioned_updates import VersionedUpdates
from tfdist.cluster import ClusterConfig
from tfdist.cluster.peer_shutdown import wait_until_gone
from tfdist.cluster.peer_startup import wait_for_peers
from tfdist.cluster.task_watch import watch_tasks
from tfdist.cluster.tasks import CHIEF_JOBS
from tfdist.keras_compat.optimizers.routed_updates import route_updates
from tfdist.keras_compat.parameter_server.staleness_logs import log_staleness
from tfdist.keras_compat.parameter_server.variable_partitioner import check_variable_partitioner
from tfdist.keras_compat.registry import prepare_keras
from tfdist.strategies.arguments import check_cluster, check_startup_timeout
from tfdist.strategies.cluster_resolver import cluster_resolver
from tfdist.strategies.devices import grow_gpu_memory
from tfdist.strategies.once import note_strategy, refusing_second_strategy
from tfdist.strategies.own import making_strategy
from tfdist.strategies.start_deadline import start_deadline, time_to_start

# With only as many inter-op threads as cores, the RPCs of a server on a small machine wait for each other.
_MIN_INTER_OP_THREADS = 8
# Workers and ps look for the coordinator's server this often, and the server of a short program lives this much longer,
# so that they see it: what they never see they would wait for until the deadline.
_POLL_SECONDS = 0.1
_LEAST_LIFE_SECONDS = 2.0
# During the training a machine may be busy for a while, however short the start-up has to be.
_LEAST_SILENCE_SECONDS = 60.0


class ParameterServerStrategy(tf.distribute.ParameterServerStrategy):
    """TensorFlow's ParameterServerStrategy, whose distributed datasets keep the dataset or function they are made from.

    `fit` needs this dataset or function, since with this strategy every worker builds its own dataset.

    Attributes:
        tfdist_updates: VersionedUpdates, through which optimizers update variables; None without `staleness`.
    """

    tfdist_updates: VersionedUpdates | None = None

    def distribute_datasets_from_function(self, dataset_fn: Callable, options: Any = None) -> Any:
        """Does the same as the base class, and stores `dataset_fn` on the result."""
        dataset = super().distribute_datasets_from_function(dataset_fn, options)
        dataset.tfdist_dataset_fn = dataset_fn
        return dataset

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any = None) -> Any:
        """Does the same as the base class, and stores `dataset` on the result."""
        distributed = super().experimental_distribute_dataset(dataset, options)
        distributed.tfdist_dataset = dataset
        return distributed

    def run(self, fn: Callable, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Does the same as the base class; with staleness, reads the versions of the weights first."""
        updates = self.tfdist_updates
        if updates is None or tf.executing_eagerly():
            return super().run(fn, args, kwargs, options)
        # The function is inlined, so that all of its reads come after that of the versions.
        function = getattr(fn, "python_function", fn)
        outside = tf.__internal__.autograph.control_status_ctx()
        converted = tf.__internal__.autograph.tf_convert(function, outside, convert_by_default=False)

        def step(*args: Any, **kwargs: Any) -> Any:
            with updates.reading():
                return converted(*args, **kwargs)

        return super().run(tf.autograph.experimental.do_not_convert(step), args, kwargs, options)


@making_strategy()
def parameter_server(
    *,
    cluster: ClusterConfig | None = None,
    variable_partitioner: Callable | None = None,
    startup_timeout_seconds: float = 300.0,
    staleness: Staleness | None = None,
) -> tf.distribute.Strategy:
    """Returns a tf.distribute.ParameterServerStrategy on the coordinator; runs a server on a worker or ps.

    Args:
        cluster: the cluster, and the task of this process in it; None reads TF_CONFIG.
        variable_partitioner: splits variables over the ps tasks, see tf.distribute.experimental.partitioners; tf_keras
            supports partitioners, Keras 3 does not.
        startup_timeout_seconds: how long the coordinator waits for every worker and ps, and how long each worker and ps
            waits for the coordinator. Also how long, but at least 60 s, a task may go without an answer during the
            training, because it is stopped or its machine is gone; the coordinator then names it and ends with code 70.
        staleness: what to do with gradients of old weights, see tfdist.averaging.Staleness; None uses each gradient
            as it is, and counts nothing.

    Raises:
        ValueError: for a cluster without parameter servers, for a partitioner that the Keras in use does not support,
            and for options of staleness that the cluster cannot honour.
        TimeoutError: if tasks do not answer in time; the message names each of them with the reason.
        RuntimeError: if this process has made a strategy of its cluster before.
        SystemExit: on a worker or ps, with code 0, once the coordinator is done.

    Example:
        >>> from tfdist.cluster import ClusterConfig
        >>> from tfdist.strategies import parameter_server
        >>> parameter_server(cluster=ClusterConfig(jobs={}, task_type=None, task_index=0))
        Traceback (most recent call last):
        ...
        ValueError: expected a cluster with the jobs chief, worker and ps ...
    """
    check_cluster(cluster)
    check_startup_timeout(startup_timeout_seconds)
    cluster = ClusterConfig.detect(timeout_seconds=startup_timeout_seconds) if cluster is None else cluster
    check_parameter_servers(cluster)
    check_variable_partitioner(variable_partitioner)
    check_staleness(staleness, num_workers=cluster.num_workers)
    grow_gpu_memory()
    if cluster.task_type in ("worker", "ps"):
        _serve(cluster, startup_timeout_seconds=startup_timeout_seconds)
    check_coordinator(cluster)
    resolver = cluster_resolver(cluster, num_gpus=len(tf.config.list_physical_devices("GPU")))
    strategy = start_coordinator(
        lambda: ParameterServerStrategy(resolver, variable_partitioner=variable_partitioner),
        cluster=cluster,
        startup_timeout_seconds=startup_timeout_seconds,
    )
    if staleness is not None:
        _prepare_once()
        strategy.tfdist_updates = VersionedUpdates(strategy, staleness)
        if staleness.bound is not None:
            keep_bound(strategy, staleness.bound)
    return strategy


@functools.cache
def _prepare_once() -> None:
    route_updates()
    log_staleness()


def check_parameter_servers(cluster: ClusterConfig) -> None:
    """Raises ValueError for a cluster without parameter servers, and for one without a chief."""
    if not cluster.has_parameter_servers:
        raise ValueError(
            "expected a cluster with the jobs chief, worker and ps for the strategy parameter_server, received "
            f"{', '.join(cluster.jobs) or 'no cluster'}; set TF_CONFIG, or start the program with "
            "`tfdist launch --workers 2 --ps 1`."
        )
    if not any(job in cluster.jobs for job in CHIEF_JOBS):
        raise ValueError(
            "expected a cluster with a chief for the strategy parameter_server, received the jobs "
            f"{', '.join(cluster.jobs)}; add cluster.chief, the coordinator that {cluster.task_name} serves."
        )


def check_coordinator(cluster: ClusterConfig) -> None:
    """Raises ValueError unless this task is the coordinator."""
    if not cluster.is_coordinator:
        raise ValueError(
            f"expected one of the tasks chief, worker and ps, received {cluster.task_name}; "
            "use 'auto' or 'one_device' in the evaluator."
        )


def start_coordinator(
    make: Callable[[], tf.distribute.Strategy], *, cluster: ClusterConfig, startup_timeout_seconds: float
) -> tf.distribute.Strategy:
    """Waits for the workers and ps, makes the strategy, watches the tasks, and returns the strategy for Keras.

    Args:
        make: calls the constructor of the strategy, which connects the coordinator with the other tasks.
        cluster: the cluster, in which this task is the coordinator.
        startup_timeout_seconds: how long the start may take, and how long a task may be silent later.

    Raises:
        TimeoutError: if tasks do not answer in time.
        RuntimeError: if this process has made a strategy of its cluster before.
        ValueError: for workers with several GPUs.
    """
    start = time.monotonic()
    with refusing_second_strategy("parameter_server", cluster):
        wait_for_peers(cluster, timeout_seconds=startup_timeout_seconds, log=get_logger().info)
    with start_deadline(cluster, timeout_seconds=time_to_start(startup_timeout_seconds, since=start)):
        strategy = make()
    note_strategy("parameter_server", cluster)
    atexit.register(_wait_until, time.monotonic() + _LEAST_LIFE_SECONDS)
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"expected workers with at most one GPU, received workers with {strategy.num_replicas_in_sync} GPUs; "
            "start one worker per GPU, each with its own CUDA_VISIBLE_DEVICES."
        )
    silence_seconds = max(startup_timeout_seconds, _LEAST_SILENCE_SECONDS)
    watch_tasks(cluster, timeout_seconds=silence_seconds, while_alive=strategy)
    return prepare_keras(strategy, "parameter_server")


def _wait_until(end: float) -> None:
    time.sleep(max(0.0, end - time.monotonic()))


def _serve(cluster: ClusterConfig, *, startup_timeout_seconds: float) -> None:
    """Runs this task's TensorFlow server until the coordinator has started and ended, then ends the process."""
    config = tf.compat.v1.ConfigProto()
    config.inter_op_parallelism_threads = max(_MIN_INTER_OP_THREADS, os.cpu_count() or 1)
    resolver = cluster_resolver(cluster, num_gpus=0)
    try:
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            config=config,
            start=True,
        )
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"{cluster.task_name} expected to serve at its own address {cluster.address}, but TensorFlow could not: "
            f"{error.message}; stop the process that holds the port or choose another port."
        ) from error
    coordinator = next(peer for peer in cluster.peers() if peer.job in CHIEF_JOBS)
    get_logger().info(
        "%s serves at %s for the coordinator at %s", cluster.task_name, cluster.address, coordinator.address
    )
    wait_until_gone(
        coordinator.address, appear_poll_seconds=_POLL_SECONDS, appear_timeout_seconds=startup_timeout_seconds
    )
    get_logger().info("%s ends: the coordinator at %s is done", cluster.task_name, coordinator.address)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(0)
