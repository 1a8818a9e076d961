"""The socket that shows this task's peers that it is up, until TensorFlow's own server takes the port over."""

from __future__ import annotations

import errno
import os
import socket

from tfdist.cluster.address import split_address
from tfdist.cluster.errors import PortInUseError

# Peers are accepted as they come; the queue holds those that come at the same moment.
_BACKLOG = 128


def listen(address: str, *, task_name: str) -> socket.socket:
    """Listens on the port of this task's own address, on all interfaces as TensorFlow's server does.

    Args:
        address: this task's own `host:port`.
        task_name: what the message calls this task.

    Raises:
        PortInUseError: if another process listens on the port, or holds it without sharing.
        OSError: if the port cannot be had for another reason, such as missing rights.

    Example:
        >>> import socket
        >>> with socket.create_server(("", 0)) as other:
        ...     listen(f"localhost:{other.getsockname()[1]}", task_name="worker 0")
        Traceback (most recent call last):
        ...
        tfdist.cluster.errors.PortInUseError: worker 0 expected port ... to be free for its own address ...
    """
    _, port = split_address(address)
    try:
        return _bind(port)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sentence = f"{task_name} expected port {port} to be free for its own address {address}, received {reason!r}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"{sentence}; stop the process that holds it or choose another port.") from None
        raise OSError(error.errno, f"{sentence}; choose a port that this process may listen on.") from None


def _bind(port: int) -> socket.socket:
    try:
        # One socket for both families: a peer may look localhost up as ::1 or as 127.0.0.1.
        server = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        return _prepare(server, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT, errno.EINVAL):
            raise
    # This machine has IPv6 switched off.
    return _prepare(socket.socket(socket.AF_INET, socket.SOCK_STREAM), "", port)


def _prepare(server: socket.socket, host: str, port: int) -> socket.socket:
    try:
        # Lets the port be had while a launcher keeps it for this task with a socket that does not listen, and while
        # connections of an earlier process are in TIME_WAIT.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if server.family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, port))
        server.listen(_BACKLOG)
        server.setblocking(False)
        return server
    except BaseException:
        server.close()
        raise
