"""Gives a strategy the native transport: a multi-worker strategy, if all workers have it, or a mirrored one on CPUs."""

from __future__ import annotations

import concurrent.futures
import secrets
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._log import get_logger
from tfdist.allreduce.native.communicator import Communicator, Listener
from tfdist.allreduce.native.library import why_missing
from tfdist.allreduce.native.rendezvous import Rendezvous
from tfdist.allreduce.streams import unexpected_launchers, why_unexpected

_LONGEST_SECONDS = 60.0


def install(strategy: tf.distribute.MultiWorkerMirroredStrategy, *, asked: str, timeout_seconds: float) -> str:
    """Replaces the launchers of a strategy; all workers call this function together.

    Args:
        strategy: a strategy of several workers, connected.
        asked: "auto" or "native", as in AllReduceOptions.
        timeout_seconds: how long the workers may take to connect.

    Returns:
        Why the strategy has not got the transport; "" if it has.

    Raises:
        RuntimeError: if "native" was asked for, and a worker cannot use it.
    """
    extended = strategy.extended
    worker, workers = extended._id_in_cluster, extended._num_workers
    rendezvous = Rendezvous(worker=worker, workers=workers, timeout_seconds=min(timeout_seconds, _LONGEST_SECONDS))
    why = _why_not(strategy)
    names = _task_names(strategy)
    listeners: list[Listener] = []
    run_id = rendezvous.run_id()
    replicas = len(extended.worker_devices)
    if not why:
        try:
            listeners = [Listener(_listen_on(strategy), shares_memory=True, run_id=run_id) for _ in range(replicas)]
        except OSError as error:
            why = str(error)
    ports = [[listener.port, listener.machine, listener.local] for listener in listeners]
    found = rendezvous.exchange("addresses", {"why": why, "listeners": ports})
    why = _first_reason([one["why"] for one in found], names)
    is_on_some = not all(one["why"] for one in found)
    communicators: list[Communicator] = []
    if not why:
        try:
            addresses = _addresses(found, names, _hosts(strategy))
            communicators = _connect(listeners, addresses, first=worker * replicas, timeout_seconds=timeout_seconds)
        except (OSError, TimeoutError) as error:
            why = str(error)
        found = rendezvous.exchange("connected", {"why": why})
        why = _first_reason([one["why"] for one in found], names)
    if why:
        for communicator in communicators:
            communicator.close()
        if asked == "native":
            raise RuntimeError(
                f"expected all workers to have the native transport, received: {why}; install tfdist-native with "
                "`pip install 'tfdist[native]'` on all workers, or leave all_reduce.transport out."
            )
        # If no worker can use it, the line about the strategy says so.
        if is_on_some:
            get_logger().info("gradients are sent by TensorFlow: %s", why)
        return why
    _replace_launchers(strategy, extended._cross_device_ops, communicators)
    return ""


def install_within_process(strategy: tf.distribute.Strategy) -> str:
    """Replaces the launchers of a strategy of one process on several CPUs, whose replicas then use shared memory.

    Args:
        strategy: mirrored, or multi-worker mirrored with one worker. One replica has nothing to send.

    Returns:
        Why the strategy has not got the transport; "" if it has.
    """
    extended = strategy.extended
    devices = extended.worker_devices
    if len(devices) == 1:
        return ""
    operations = getattr(extended, "_collective_ops", extended._cross_device_ops)
    if extended._cross_device_ops is not None and extended._cross_device_ops is not operations:
        return "another algorithm than the ring was asked for"
    if not all("CPU" in device.upper() for device in devices):
        return "the replicas are not on several CPUs"
    why = why_missing() or why_unexpected(getattr(operations, "_launchers", None))
    if why:
        return why
    run_id = secrets.token_hex(32)
    listeners = [Listener("127.0.0.1", shares_memory=True, run_id=run_id) for _ in devices]
    addresses = [
        f"replica_{number} 127.0.0.1 {one.port} {one.machine} {one.local}" for number, one in enumerate(listeners)
    ]
    communicators = _connect(listeners, addresses, first=0, timeout_seconds=_LONGEST_SECONDS)
    _replace_launchers(strategy, operations, communicators)
    return ""


def _replace_launchers(
    strategy: tf.distribute.Strategy, operations: Any, communicators: Sequence[Communicator]
) -> None:
    from tfdist.allreduce.native.launcher import NativeLauncher

    strategy._tfdist_stock_launchers = operations, operations._launchers
    operations._launchers = [
        NativeLauncher(stock, communicator)
        for stock, communicator in zip(operations._launchers, communicators, strict=True)
    ]
    strategy._tfdist_communicators = tuple(communicators)
    for communicator in communicators:
        # A notebook makes many strategies in one process; each communicator has a thread.
        weakref.finalize(strategy, communicator.close)


def _why_not(strategy: tf.distribute.Strategy) -> str:
    if any("GPU" in device.upper() for device in strategy.extended.worker_devices):
        return "the replicas are on GPUs"
    return why_missing() or unexpected_launchers(strategy)


def _first_reason(reasons: Sequence[str], names: Sequence[str]) -> str:
    for reason, name in zip(reasons, names, strict=True):
        if reason:
            return f"{reason} ({name})"
    return ""


def _tasks(strategy: tf.distribute.Strategy) -> list[tuple[str, int, str]]:
    spec = strategy.cluster_resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in spec.jobs]
    return [(job, index, spec.task_address(job, index)) for job in jobs for index in spec.task_indices(job)]


def _task_names(strategy: tf.distribute.Strategy) -> list[str]:
    return [f"{job} {index}" for job, index, _ in _tasks(strategy)]


def _hosts(strategy: tf.distribute.Strategy) -> list[str]:
    return [address.rpartition(":")[0].strip("[]") for _, _, address in _tasks(strategy)]


def _listen_on(strategy: tf.distribute.Strategy) -> str:
    numeric = [_numeric(host) for host in _hosts(strategy)]
    if all(host.startswith("127.") or host == "::1" for host in numeric):
        return numeric[0]
    return "::" if any(":" in host for host in numeric) else "0.0.0.0"


def _numeric(host: str) -> str:
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def _addresses(found: Sequence[dict[str, Any]], names: Sequence[str], hosts: Sequence[str]) -> list[str]:
    addresses = []
    for one, name, host in zip(found, names, hosts, strict=True):
        for number, (port, machine, local) in enumerate(one["listeners"]):
            replica = f"replica_{number}_of_" if len(one["listeners"]) > 1 else ""
            addresses.append(f"{replica}{name.replace(' ', '_')} {_numeric(host)} {port} {machine} {local}")
    return addresses


def _connect(
    listeners: Sequence[Listener], addresses: Sequence[str], *, first: int, timeout_seconds: float
) -> list[Communicator]:
    # The replicas of a worker connect with each other too: all of them at the same time.
    with concurrent.futures.ThreadPoolExecutor(len(listeners)) as threads:
        futures = [
            threads.submit(listener.connect, first + number, addresses, timeout_seconds=timeout_seconds)
            for number, listener in enumerate(listeners)
        ]
        return [future.result() for future in futures]
