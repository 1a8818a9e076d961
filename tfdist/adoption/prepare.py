"""Makes a strategy with the constructor of TensorFlow that a program has called, and prepares it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.adoption.clusters import cluster_of, coordinated_cluster
from tfdist.adoption.communication import options_of_communication, options_of_cross_device_ops
from tfdist.adoption.options import AdoptionOptions
from tfdist.adoption.sentences import adopted_sentence
from tfdist.cluster import ClusterConfig
from tfdist.keras_compat.layers.synchronized_by_default import synchronize_batch_normalization
from tfdist.keras_compat.losses.rule import remember_loss_rule
from tfdist.keras_compat.parameter_server.keep_datasets import keep_datasets
from tfdist.keras_compat.parameter_server.variable_partitioner import check_variable_partitioner
from tfdist.keras_compat.version import keras_in_use
from tfdist.strategies.all_reduce import communication_options, cross_device_ops
from tfdist.strategies.cluster_resolver import cluster_resolver
from tfdist.strategies.devices import count_gpus, grow_gpu_memory, has_split_gpus
from tfdist.strategies.local import prepare_local
from tfdist.strategies.mirrored import prepare_mirrored
from tfdist.strategies.multi_worker_mirrored import check_workers, start_workers
from tfdist.strategies.parameter_server import check_parameter_servers, start_coordinator

adopted: list[str] = []
"""The sentence of each strategy that was adopted in this process."""


def prepare(kind: str, strategy: Any, stock: Callable, given: Mapping[str, Any], options: AdoptionOptions) -> None:
    """Calls a constructor of TensorFlow, and prepares the strategy as create_strategy does.

    Args:
        kind: the name of the strategy in create_strategy.
        strategy: the strategy, whose constructor has not run yet.
        stock: the constructor of TensorFlow.
        given: all arguments of the constructor, by name.
        options: the options of `adopt`.

    Raises:
        ValueError: for an argument that create_strategy would refuse.
        TimeoutError: if tasks of the cluster do not answer in time.
        RuntimeError: if a strategy of several workers is made after TensorFlow has started.
    """
    keras = keras_in_use()
    if keras.is_keras3 and "tf_keras" in sys.modules:
        get_logger().warning(
            "tf_keras is imported beside Keras %s, and only models of Keras %s are prepared; for models of tf_keras, "
            "set TF_USE_LEGACY_KERAS=1",
            keras.version,
            keras.version,
        )
    if kind != "tpu":
        grow_gpu_memory()
    cluster = _PREPARE[kind](strategy, stock, dict(given), options)
    if options.sync_batch_norm:
        synchronize_batch_normalization(strategy)
    remember_loss_rule(strategy, options.loss)
    adopted.append(adopted_sentence(kind, strategy, cluster))
    get_logger().info("%s", adopted[-1])


def _making(strategy: Any, stock: Callable, given: Mapping[str, Any]) -> Callable[[], Any]:
    """Returns a function that runs the constructor and returns the strategy."""

    def make() -> Any:
        stock(strategy, **given)
        return strategy

    return make


def _local(kind: str) -> Callable[..., ClusterConfig]:
    def prepare_one(strategy: Any, stock: Callable, given: dict[str, Any], _: AdoptionOptions) -> ClusterConfig:
        prepare_local(_making(strategy, stock, given), kind)
        return _surroundings()

    return prepare_one


def _surroundings() -> ClusterConfig:
    """Returns the cluster of TF_CONFIG, which a strategy of this process alone does not use.

    Under other launchers the tasks may have to meet to learn of their cluster, and nothing waits for that here. A
    TF_CONFIG that is not valid does no harm.
    """
    try:
        return dataclasses.replace(ClusterConfig.from_tf_config(), source="TF_CONFIG")
    except ValueError:
        return ClusterConfig()


def _mirrored(strategy: Any, stock: Callable, given: dict[str, Any], _: AdoptionOptions) -> ClusterConfig:
    all_reduce = options_of_cross_device_ops(given["cross_device_ops"])
    devices = given["devices"] or tf.config.list_physical_devices("GPU")
    num_gpus = sum("GPU" in str(getattr(device, "name", device)).upper() for device in devices)
    # Raises an error for an algorithm that these devices do not have.
    cross_device_ops(all_reduce, num_gpus=num_gpus, is_split=has_split_gpus())
    prepare_mirrored(_making(strategy, stock, given), all_reduce=all_reduce)
    return _surroundings()


def _multi_worker_mirrored(
    strategy: Any, stock: Callable, given: dict[str, Any], options: AdoptionOptions
) -> ClusterConfig:
    num_gpus = count_gpus()
    resolver = given["cluster_resolver"]
    cluster = ClusterConfig.detect() if resolver is None else cluster_of(resolver)
    check_workers(cluster)
    if resolver is None:
        given["cluster_resolver"] = cluster_resolver(cluster, num_gpus=num_gpus)
    all_reduce = options_of_communication(given["communication_options"])
    given["communication_options"] = communication_options(all_reduce, num_gpus=num_gpus, is_split=has_split_gpus())
    start_workers(
        _making(strategy, stock, given),
        cluster=cluster,
        all_reduce=all_reduce,
        startup_timeout_seconds=options.startup_timeout_seconds,
    )
    return cluster


def _parameter_server(strategy: Any, stock: Callable, given: dict[str, Any], options: AdoptionOptions) -> ClusterConfig:
    cluster = coordinated_cluster(given["cluster_resolver"])
    check_parameter_servers(cluster)
    check_variable_partitioner(given["variable_partitioner"])
    keep_datasets(tf.distribute.ParameterServerStrategy)
    start_coordinator(
        _making(strategy, stock, given),
        cluster=cluster,
        startup_timeout_seconds=options.startup_timeout_seconds,
    )
    return cluster


_PREPARE: dict[str, Callable[..., ClusterConfig]] = {
    "one_device": _local("one_device"),
    "mirrored": _mirrored,
    "multi_worker_mirrored": _multi_worker_mirrored,
    "parameter_server": _parameter_server,
    "central_storage": _local("central_storage"),
    "tpu": _local("tpu"),
}
