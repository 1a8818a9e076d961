"""create_strategy: a strategy by name, or chosen from the cluster, the TPU and the devices of this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist._log import get_logger
from tfdist._loss_rules import check_loss_rule
from tfdist._strategy_names import STRATEGY_NAMES
from tfdist.allreduce import AllReduceOptions
from tfdist.averaging.staleness import Staleness
from tfdist.cluster import ClusterConfig
from tfdist.cluster.others import other_workers
from tfdist.cluster.tpu import find_tpu
from tfdist.keras_compat.layers.synchronized_by_default import synchronize_batch_normalization
from tfdist.keras_compat.losses.rule import remember_loss_rule
from tfdist.strategies.all_reduce import automatic_algorithm, refuse_all_reduce
from tfdist.strategies.arguments import check_all_reduce, check_cluster, check_startup_timeout, read_devices
from tfdist.strategies.central_storage import central_storage
from tfdist.strategies.devices import count_gpus, has_split_gpus
from tfdist.strategies.mirrored import mirrored
from tfdist.strategies.multi_worker_mirrored import multi_worker_mirrored
from tfdist.strategies.one_device import one_device
from tfdist.strategies.parameter_server import parameter_server
from tfdist.strategies.tpu import tpu as tpu_strategy

_SUMMING = ("mirrored", "multi_worker_mirrored")
"""Strategies whose all-reduce has options."""

_OF_ONE_PROCESS = ("one_device", "mirrored", "central_storage")


@dataclasses.dataclass(frozen=True)
class Choice:
    """The strategy that "auto" chose, and the reason."""

    name: str
    reason: str


def choose_strategy(
    cluster: ClusterConfig, *, num_gpus: int, tpu_source: str | None, devices: int | Sequence[str] | None
) -> Choice:
    """Returns the name of the strategy that suits the cluster and the devices of this process, with the reason.

    Args:
        cluster: the cluster, and the task of this process in it.
        num_gpus: how many GPUs this process has.
        tpu_source: the place where a TPU was found, or None.
        devices: the local devices that the user asked for.

    Example:
        >>> from tfdist.cluster import ClusterConfig
        >>> from tfdist.strategies.create import choose_strategy
        >>> alone = ClusterConfig(jobs={}, task_type=None, task_index=0)
        >>> choose_strategy(alone, num_gpus=2, tpu_source=None, devices=None)
        Choice(name='mirrored', reason='this machine has 2 GPUs')
    """
    local = _choose_local(num_gpus=num_gpus, devices=devices)
    source = f" ({cluster.source})" if cluster.source else ""
    if cluster.is_evaluator:
        return dataclasses.replace(local, reason=f"this task is the evaluator, outside the cluster, and {local.reason}")
    if cluster.has_parameter_servers:
        return Choice(
            "parameter_server",
            f"the cluster has {cluster.num_workers} workers and {len(cluster.jobs['ps'])} ps{source}",
        )
    if cluster.num_workers > 1:
        return Choice("multi_worker_mirrored", f"the cluster has {cluster.num_workers} workers{source}")
    if tpu_source:
        return Choice("tpu", f"a TPU was found: {tpu_source}")
    return local


def _choose_local(*, num_gpus: int, devices: int | Sequence[str] | None) -> Choice:
    count = devices if isinstance(devices, int) else len(devices) if devices is not None else None
    if count is not None:
        return Choice("mirrored" if count > 1 else "one_device", f"{count} device{'s' * (count > 1)} asked for")
    if num_gpus > 1:
        return Choice("mirrored", f"this machine has {num_gpus} GPUs")
    return Choice("one_device", f"this machine has {num_gpus or 'no'} GPU and no TF_CONFIG names other workers")


def _say_if_workers_train_apart(name: str) -> None:
    others, source = other_workers() if name in _OF_ONE_PROCESS else (0, "")
    if others:
        get_logger().warning(
            "the strategy %s does not train with the other workers, received a cluster of %d (%s): each worker trains "
            "a model of its own; use 'auto' or 'multi_worker_mirrored' to train one model",
            name,
            others + 1,
            source,
        )


def create_strategy(
    name: str = "auto",
    *,
    cluster: ClusterConfig | None = None,
    devices: int | Sequence[str] | None = None,
    all_reduce: AllReduceOptions | None = None,
    tpu: str | None = None,
    variable_partitioner: Callable | None = None,
    staleness: Staleness | None = None,
    startup_timeout_seconds: float | None = None,
    loss: str = "auto",
    sync_batch_norm: bool = False,
) -> tf.distribute.Strategy:
    """Returns the tf.distribute.Strategy with this name, prepared for Keras.

    Call this function before any tensor, dataset or model is made; TensorFlow may already be imported. On a worker or
    ps of a parameter-server cluster, the call runs TensorFlow's server, and ends the process when the coordinator is
    done.

    Args:
        name: one of auto, one_device, mirrored, multi_worker_mirrored, parameter_server, central_storage, tpu. "auto"
            decides from TF_CONFIG, TPU and devices, and logs what it chose and why.
        cluster: the cluster, and the task of this process in it; None reads TF_CONFIG,
            or the variables of a scheduler, as `ClusterConfig.detect` does.
        devices: local devices: a number, or names such as ["CPU:0", "CPU:1"]; without a GPU, a number makes logical
            CPUs.
        all_reduce: how gradients are summed.
        tpu: the name or grpc:// address of a TPU, or "local".
        variable_partitioner: splits variables over parameter servers (tf_keras only).
        staleness: what parameter servers do with gradients of old weights, see tfdist.averaging.Staleness.
        startup_timeout_seconds: how long to wait for the other tasks of the cluster; None is 300 s. Only "auto",
            "multi_worker_mirrored" and "parameter_server" accept this option; "auto" ignores it if it chooses another
            strategy.
        loss: how the losses of replicas make up that of the global batch in `fit`, `evaluate`, `train_on_batch` and
            `test_on_batch`: "replica_mean" if the program computes means over the rows that it is given, "global_sum"
            if it divides for all replicas itself; "auto" is "replica_mean" unless a division is seen while a step is
            traced, which is logged.
        sync_batch_norm: whether every BatchNormalization layer that is made in the scope of the strategy normalizes
            with the moments of the global batch, as one device does.

    Raises:
        ValueError: for an unknown name, and for an option that the strategy cannot honour.
        TimeoutError: if tasks do not answer in time; the message names them.
        RuntimeError: if TensorFlow has already started, if no TPU is found, or if this process has made a strategy of
            several processes before.

    Example:
        >>> import tfdist
        >>> strategy = tfdist.create_strategy("one_device")
        >>> strategy.num_replicas_in_sync
        1
    """
    if name not in STRATEGY_NAMES:
        raise ValueError(f"expected one of the strategies {', '.join(STRATEGY_NAMES)}, received {name!r}.")
    check_startup_timeout(startup_timeout_seconds)
    check_cluster(cluster)
    check_all_reduce(all_reduce)
    devices = read_devices(devices)
    if tpu is not None and not isinstance(tpu, str):
        raise ValueError(f"expected tpu to be the name or the address of a TPU, or 'local', received {tpu!r}.")
    if sync_batch_norm not in (True, False):
        raise ValueError(f"expected sync_batch_norm to be True or False, received {sync_batch_norm!r}.")
    check_loss_rule(loss)
    by_name = name != "auto"
    num_gpus = count_gpus()
    if name == "auto":
        if cluster is None:
            cluster = ClusterConfig.detect(timeout_seconds=startup_timeout_seconds or 300.0)
        found = find_tpu()
        choice = choose_strategy(
            cluster,
            num_gpus=num_gpus,
            tpu_source=f"{tpu} as named" if tpu else found.source,
            devices=devices,
        )
        name = choice.name
    algorithm = ""
    if name in _SUMMING:
        algorithm = automatic_algorithm(name, all_reduce, devices=devices, gpus=num_gpus, is_split=has_split_gpus())
    if not by_name:
        # One line, before anything can wait for another worker.
        gradients = f"; all-reduce: auto chose {algorithm}" if algorithm else ""
        get_logger().info("strategy %s: %s%s", name, choice.reason, gradients)
    options: dict[str, tuple[object, tuple[str, ...]]] = {
        "devices": (devices, ("one_device", "mirrored", "central_storage", "multi_worker_mirrored")),
        "tpu": (tpu, ("tpu",)),
        "variable_partitioner": (variable_partitioner, ("parameter_server",)),
        "staleness": (staleness, ("parameter_server",)),
    }
    if by_name:
        # "auto" accepts these two options whichever strategy it chooses.
        options["cluster"] = (cluster, ("multi_worker_mirrored", "parameter_server"))
        options["startup_timeout_seconds"] = (startup_timeout_seconds, ("multi_worker_mirrored", "parameter_server"))
        _say_if_workers_train_apart(name)
    for option, (value, takers) in options.items():
        if value is not None and name not in takers:
            raise ValueError(
                f"expected no {option} for the strategy {name}, received {value!r}; only {' and '.join(takers)} "
                f"{'take' if len(takers) > 1 else 'takes'} it."
            )
    if name not in _SUMMING:
        refuse_all_reduce(name, all_reduce)
    timeout = {} if startup_timeout_seconds is None else {"startup_timeout_seconds": startup_timeout_seconds}
    strategy: tf.distribute.Strategy
    match name:
        case "one_device":
            strategy = one_device(devices=devices)
        case "mirrored":
            strategy = mirrored(devices=devices, all_reduce=all_reduce)
        case "central_storage":
            strategy = central_storage(devices=devices)
        case "tpu":
            strategy = tpu_strategy(tpu)
        case "multi_worker_mirrored":
            strategy = multi_worker_mirrored(cluster=cluster, devices=devices, all_reduce=all_reduce, **timeout)
        case _:
            strategy = parameter_server(
                cluster=cluster, variable_partitioner=variable_partitioner, staleness=staleness, **timeout
            )
    if by_name and algorithm and strategy.num_replicas_in_sync > 1:
        get_logger().info("all-reduce: auto chose %s", algorithm)
    if sync_batch_norm:
        synchronize_batch_normalization(strategy)
    return remember_loss_rule(strategy, loss)
