"""Server sockets that bind a port as TensorFlow's gRPC server does: on all interfaces, for IPv6 and IPv4."""

from __future__ import annotations

import errno
import os
import socket

from tfdist.cluster.address import split_address
from tfdist.cluster.errors import PortInUseError

# Connections are accepted as they come in; the queue only holds connections that come in at the same moment.
_BACKLOG = 128


def bind_all_interfaces(port: int) -> socket.socket:
    """Returns a socket that is bound to a port on all interfaces and does not listen yet.

    The socket has SO_REUSEADDR set. It can therefore bind a port that another process has bound with the same option
    if the other process does not listen, and a port whose earlier connections are in TIME_WAIT.

    Args:
        port: the port; 0 chooses a free one.

    Raises:
        OSError: if the port is in use or may not be bound.

    Example:
        >>> with bind_all_interfaces(0) as bound:
        ...     bound.getsockname()[1] > 0
        True
    """
    try:
        # One socket serves both families: a peer may resolve localhost as ::1 or as 127.0.0.1.
        return _bind(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
    # Any other failure may mean that this machine has IPv6 switched off. If not, IPv4 fails for the same reason.
    return _bind(socket.AF_INET, "", port)


def _bind(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((host, port))
        return server
    except BaseException:
        server.close()
        raise


def listen_on_own_port(address: str, *, task_name: str) -> socket.socket:
    """Returns a non-blocking socket that listens on the port of this task, on all interfaces.

    Args:
        address: this task's own `host:port`.
        task_name: how the error message names this task.

    Raises:
        PortInUseError: if another process listens on the port, or has bound it without SO_REUSEADDR.
        OSError: if the port cannot be bound for another reason, such as missing permissions.

    Example:
        >>> import socket
        >>> with socket.create_server(("", 0)) as other:
        ...     listen_on_own_port(f"localhost:{other.getsockname()[1]}", task_name="worker 0")
        Traceback (most recent call last):
        ...
        tfdist.cluster.errors.PortInUseError: worker 0 expected port ... to be free for its own address ...
    """
    _, port = split_address(address)
    try:
        server = bind_all_interfaces(port)
        try:
            server.listen(_BACKLOG)
            server.setblocking(False)
            return server
        except BaseException:
            server.close()
            raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        sentence = f"{task_name} expected port {port} to be free for its own address {address}, received {reason!r}"
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"{sentence}; stop the process that holds it or choose another port.") from None
        raise OSError(error.errno, f"{sentence}; choose a port that this process may listen on.") from None
