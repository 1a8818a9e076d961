"""Gives a strategy the native transport: a multi-worker strategy, if all workers have it, or a mirrored one on CPUs."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import secrets
import socket
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.allreduce.native.communicator import Communicator, Listener
from tfdist.allreduce.native.library import NOT_INSTALLED, why_missing
from tfdist.allreduce.native.rendezvous import Rendezvous
from tfdist.allreduce.streams import unexpected_launchers, why_unexpected

ON_GPUS = "the replicas are not on CPUs"
OTHER_ALGORITHM = "another algorithm than the ring was asked for"
KNOWN_BEFORE = (NOT_INSTALLED, ON_GPUS, OTHER_ALGORITHM)
"""Reasons that a process knows before it asks the others."""

_ADVICE = {
    # Missing, of another release, or not loaded.
    "tfdist-native": "install tfdist-native with `pip install '.[native]'` in a checkout of tfdist on all workers, or ",
    os.strerror(errno.EMFILE): "raise the limit of open files (ulimit -n), or ",
    " within ": "let the network pass TCP connections between the workers on all ports, or ",
}
"""What to do, by a part of the reason."""

# For all that the workers do here; the rest of their time for the start is left to what follows.
_LONGEST_SECONDS = 60.0
_SHARE_OF_START = 0.8
# Connections within a data centre take milliseconds. Those that a firewall drops are given up after this time.
_CONNECT_SECONDS = 10.0
# Threads that cannot be started are a RuntimeError.
_FAILURES = (OSError, TimeoutError, RuntimeError)


def install(strategy: tf.distribute.MultiWorkerMirroredStrategy, *, asked: str, timeout_seconds: float) -> str:
    """Replaces the launchers of a strategy; all workers call this function together.

    Each part has its own share of the time: the workers agree who can connect, they connect, and they agree whether all
    have connected.

    Args:
        strategy: a strategy of several workers, connected.
        asked: "auto" or "native", as in AllReduceOptions.
        timeout_seconds: how long the workers may take to start.

    Returns:
        Why the strategy has not got the transport; "" if it has.

    Raises:
        RuntimeError: if "native" was asked for, and a worker cannot use it.
        TimeoutError: if a worker does not take part.
    """
    extended = strategy.extended
    worker, replicas = extended._id_in_cluster, len(extended.worker_devices)
    seconds = min(_SHARE_OF_START * timeout_seconds, _LONGEST_SECONDS)
    connect_seconds = round(min(seconds / 4, _CONNECT_SECONDS), 1)
    rendezvous = Rendezvous(worker=worker, workers=extended._num_workers, timeout_seconds=seconds)
    why = _why_not(strategy)
    names = _task_names(strategy)
    listeners: list[Listener] = []
    run_id = rendezvous.run_id(keep_seconds=2 * connect_seconds)
    if not why:
        try:
            address = _listen_on(_hosts(strategy), worker)
            listeners = [Listener(address, shares_memory=True, run_id=run_id) for _ in range(replicas)]
        except _FAILURES as error:
            why = str(error)
    ports = [[listener.port, listener.machine, listener.local] for listener in listeners]
    own = {"why": why, "listeners": ports}
    found = rendezvous.exchange("addresses", own, keep_seconds=2 * connect_seconds)
    why = _common_reason([one["why"] for one in found], names)
    if why:
        for listener in listeners:
            listener.close()
        if asked == "native":
            raise RuntimeError(
                f"expected all workers to have the native transport, received: {why}; {advice_for(why)}leave "
                "all_reduce.transport out."
            )
        return why
    communicators: list[Communicator] = []
    try:
        addresses = _addresses(found, names, _hosts(strategy))
        communicators = _connect(listeners, addresses, first=worker * replicas, timeout_seconds=connect_seconds)
    except _FAILURES as error:
        why = str(error)
    try:
        found = rendezvous.exchange("connected", {"why": why})
    except BaseException:
        for communicator in communicators:
            communicator.close()
        raise
    # The last worker that has not connected has called the others; those have only waited for it.
    why = _common_reason([one["why"] for one in reversed(found)], names[::-1])
    if not why:
        _replace_launchers(strategy, extended._cross_device_ops, communicators)
        return ""
    for communicator in communicators:
        communicator.close()
    for listener in listeners:
        listener.close()
    if asked == "native":
        raise RuntimeError(
            f"expected all workers to connect for the native transport, received: {why}; {advice_for(why)}leave "
            "all_reduce.transport out."
        )
    return why


def advice_for(why: str) -> str:
    """Returns what makes the native transport usable, with "or" behind it; "" if that is not known.

    Args:
        why: why it cannot be used.

    Example:
        >>> from tfdist.allreduce.native.install import advice_for
        >>> advice_for("eventfd: Too many open files")
        'raise the limit of open files (ulimit -n), or '
    """
    return next((advice for text, advice in _ADVICE.items() if text in why), "")


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
        return OTHER_ALGORITHM
    if not all("CPU" in device.upper() for device in devices):
        return ON_GPUS
    why = why_missing() or why_unexpected(getattr(operations, "_launchers", None))
    if why:
        return why
    try:
        communicators = _connect_within_process(len(devices))
    except _FAILURES as error:
        return str(error)
    _replace_launchers(strategy, operations, communicators)
    return ""


def renew_within_process(strategy: tf.distribute.Strategy) -> None:
    """Gives the replicas of one process new connections, if they have the transport.

    After a step that failed or was interrupted, collectives that some replicas have started are never complete, and
    those of the next step would come after them.

    Args:
        strategy: any strategy, none of whose steps is running.
    """
    communicators = getattr(strategy, "_tfdist_communicators", ())
    if not communicators or strategy.num_replicas_in_sync > len(communicators):
        return
    operations, _ = strategy._tfdist_stock_launchers
    # An interrupt may come after the keys of a call have been taken for some replicas only.
    for keys in operations._collective_keys._instance_key_table.values():
        keys.update(dict.fromkeys(keys, max(keys.values(), default=0)))
    for communicator, other in zip(communicators, _connect_within_process(len(communicators)), strict=True):
        communicator.take(other)


def _connect_within_process(replicas: int) -> list[Communicator]:
    run_id = secrets.token_hex(32)
    listeners = [Listener("127.0.0.1", shares_memory=True, run_id=run_id) for _ in range(replicas)]
    addresses = [
        f"replica_{number} 127.0.0.1 {one.port} {one.machine} {one.local}" for number, one in enumerate(listeners)
    ]
    return _connect(listeners, addresses, first=0, timeout_seconds=_CONNECT_SECONDS)


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
        return ON_GPUS
    return why_missing() or unexpected_launchers(strategy)


def _common_reason(reasons: Sequence[str], names: Sequence[str]) -> str:
    """Returns the first reason, with the worker that has it if not all have the same; "" if there is none."""
    for reason, name in zip(reasons, names, strict=True):
        if reason:
            return reason if len(set(reasons)) == 1 else f"{reason} ({name})"
    return ""


def _tasks(strategy: tf.distribute.Strategy) -> list[tuple[str, int, str]]:
    spec = strategy.cluster_resolver.cluster_spec()
    jobs = [job for job in ("chief", "worker") if job in spec.jobs]
    return [(job, index, spec.task_address(job, index)) for job in jobs for index in spec.task_indices(job)]


def _task_names(strategy: tf.distribute.Strategy) -> list[str]:
    return [f"{job} {index}" for job, index, _ in _tasks(strategy)]


def _hosts(strategy: tf.distribute.Strategy) -> list[str]:
    return [address.rpartition(":")[0].strip("[]") for _, _, address in _tasks(strategy)]


def _listen_on(hosts: Sequence[str], worker: int) -> str:
    """Returns where a worker listens: on all interfaces, or on its loopback address if all workers have one."""
    numeric = [_numeric(host) for host in hosts]
    if all(host.startswith("127.") or host == "::1" for host in numeric):
        return numeric[worker]
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
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    if errors:
        for future in futures:
            if future.exception() is None:
                future.result().close()
        # Those that wait for a replica that has failed say less than the failure.
        raise next((error for error in errors if not isinstance(error, TimeoutError)), errors[0])
    return [future.result() for future in futures]
