"""The lines that tasks send each other while they wait for their peers, so that each notices who the other one is.

A task that waits sends its name to everyone who connects to its port. A second process with the same port sends its own
name back before it ends, so that the first process learns why a peer is missing, and passes it on to its peers. Tasks
of `tfdist launch` add their incarnation, so that a process that an earlier start has left behind is told from a peer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple

from tfdist.cluster import environments
from tfdist.cluster.launched import launched

PREFIX = b"tfdist "
# More than any line has. A line comes from the network, so its length is not trusted.
MAX_BYTES = 256

_LINE = re.compile(rb"tfdist ([a-z]{1,32}) (\d{1,9})(?: process (\d{1,9}))?(?: launch ([\w.-]{1,100}))?\n")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_SECONDS = 2.0


class Greeting(NamedTuple):
    r"""The name of a task, and its process id if the process could not listen on its port.

    Args:
        task_name: the name of the task that sent the line, such as "worker 1".
        process: the process id; None if the task listens on its port.
        incarnation: `Launched.incarnation` of the task; None if `tfdist launch` did not start it.

    Example:
        >>> Greeting("worker 1").to_bytes()
        b'tfdist worker 1\n'
        >>> Greeting.from_bytes(b"tfdist worker 1 process 4711\n")
        Greeting(task_name='worker 1', process=4711, incarnation=None)
        >>> Greeting("worker 1", incarnation="4f1c.2").to_bytes()
        b'tfdist worker 1 launch 4f1c.2\n'
    """

    task_name: str
    process: int | None = None
    incarnation: str | None = None

    def to_bytes(self) -> bytes:
        """Returns the line to send."""
        process = "" if self.process is None else f" process {self.process}"
        launch = "" if self.incarnation is None else f" launch {self.incarnation}"
        return f"tfdist {self.task_name}{process}{launch}\n".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Greeting | None:
        """Returns the greeting in received bytes, or None if they are something else."""
        match = _LINE.fullmatch(data)
        if match is None:
            return None
        job, index, process, launch = match.groups()
        return cls(
            f"{job.decode()} {int(index)}",
            None if process is None else int(process),
            None if launch is None else launch.decode(),
        )


def own_incarnation(source: str = "") -> str | None:
    """Returns the incarnation of this process as one word for a greeting; None if no launcher tells one.

    Args:
        source: what describes the cluster, see ClusterConfig.

    Raises:
        ValueError: if TFDIST_ATTEMPT is not a whole number.
    """
    launch = launched()
    if launch is None:
        return environments.incarnation(source, os.environ)
    # A launch id that someone has chosen may contain any character.
    known = _WORD.fullmatch(launch.launch_id)
    name = launch.launch_id if known else hashlib.sha256(launch.launch_id.encode()).hexdigest()
    return f"{name[:80]}.{launch.attempt}"


def read_line(connection: socket.socket) -> bytes:
    """Returns the bytes that a server sends first: a whole line if they are a greeting, else the first bytes.

    Args:
        connection: a connected socket with a timeout.

    Returns:
        The bytes; b"" if the server closes the connection without a byte.

    Raises:
        TimeoutError: if no byte comes in time.
    """
    data = connection.recv(MAX_BYTES)
    while data and (data.startswith(PREFIX) or PREFIX.startswith(data)) and len(data) < MAX_BYTES:
        if b"\n" in data:
            break
        more = connection.recv(MAX_BYTES)
        if not more:
            break
        data += more
    return data


def send_greeting(greeting: Greeting, *, hosts: Sequence[str], port: int) -> Greeting | None:
    """Sends a greeting to the task that waits for its peers at a port, and returns the greeting of that task.

    Args:
        greeting: what to send.
        hosts: the names or addresses of one machine, which are tried in this order.
        port: the port of the task.

    Returns:
        The greeting of the task; None if no task waits there.
    """
    for host in hosts:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=_SECONDS) as connection:
            received = Greeting.from_bytes(read_line(connection))
            if received is not None:
                connection.sendall(greeting.to_bytes())
            return received
    return None
