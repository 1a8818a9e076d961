"""Ports: each task can listen on the port of its own address."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from tfdist.cluster import ClusterConfig, PortInUseError
from tfdist.cluster.address import split_address
from tfdist.cluster.greeting import Greeting, own_incarnation, send_greeting
from tfdist.cluster.incarnations import OTHER_LAUNCH, foreign_reason, is_foreign
from tfdist.cluster.sockets import listen_on_own_port
from tfdist.cluster.wrong_indices import CHECK_INDICES
from tfdist.doctor.finding import Finding

CHECK = "port"


class OwnPort(NamedTuple):
    """The result of listening on the port of this task.

    Args:
        server: the listening socket; None if there is none.
        error: why this task cannot listen; "" if it can, or has no address.
        is_rival: whether another process of the same task, or of a peer with the same port, listens there.
    """

    server: socket.socket | None
    error: str = ""
    is_rival: bool = False


def gather(config: ClusterConfig) -> OwnPort:
    """Listens on the port of this task. If another task has it already, tells that task who this one is."""
    if config.address is None:
        return OwnPort(None)
    _, port = split_address(config.address)
    try:
        return OwnPort(listen_on_own_port(config.address, task_name=config.task_name))
    except PortInUseError as error:
        # The other process is on this machine, whose own address may have no route from inside a container.
        incarnation = own_incarnation(config.source)
        own = Greeting(config.task_name, os.getpid(), incarnation)
        holder = send_greeting(own, hosts=("127.0.0.1", "::1"), port=port)
        if holder is None:
            return OwnPort(None, str(error))
        if is_foreign(incarnation, holder.incarnation):
            reason = foreign_reason(incarnation, holder.incarnation, holder.task_name)
            return OwnPort(None, f"port {port} of this task's address {config.address}: {reason}; {OTHER_LAUNCH}.")
        return OwnPort(
            None,
            f"another process that is {holder.task_name} listens on port {port}, which is that of this task's address "
            f"{config.address}; {CHECK_INDICES}.",
            is_rival=True,
        )
    except OSError as error:
        return OwnPort(None, error.strerror or str(error))


def decide(task: str, address: str, error: str) -> Finding:
    """Returns the finding of one task.

    Args:
        task: name of the task.
        address: its address; "" if it has none.
        error: the error of OwnPort.

    Example:
        >>> decide("worker 0", "a:2222", "").text
        'the port of its address is free'
        >>> decide("worker 0", "a:2222", "expected port 2222 to be free; stop the process that holds it.").action
        'stop the process that holds it'
    """
    if not address:
        return Finding(check=CHECK, task=task, verdict="pass", text="the task has no port")
    if not error:
        return Finding(check=CHECK, task=task, verdict="pass", text="the port of its address is free")
    text, _, action = error.rstrip(".").rpartition("; ")
    return Finding(
        check=CHECK, task=task, verdict="fail", text=text or action, action=action if text else "choose another port"
    )
