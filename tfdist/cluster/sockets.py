"""Server sockets that bind a port as TensorFlow's gRPC server does: on all interfaces, for IPv6 and IPv4."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import socket

from tfdist.cluster.address import split_address
from tfdist.cluster.errors import PortInUseError

# Connections are accepted as they come in; the queue only holds connections that come in at the same moment.
_BACKLOG = 128
# The request of Linux for the IPv4 address of an interface.
_SIOCGIFADDR = 0x8915


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


class HeldPort:
    """A free port, bound by a socket that never listens, so that a program that asks for any port does not get it.

    gRPC binds its port on all interfaces with SO_REUSEADDR. On Linux, such a listener can share the port with this
    socket. On a system where it cannot, the port is chosen and released at once.

    Attributes:
        number: the port.

    Example:
        >>> port = HeldPort()
        >>> port.number > 1023
        True
        >>> port.close()
    """

    def __init__(self) -> None:
        self._socket = bind_all_interfaces(0)
        self.number = int(self._socket.getsockname()[1])
        if not can_listen_while_held():
            self.close()

    def close(self) -> None:
        """Releases the port."""
        self._socket.close()


@functools.cache
def can_listen_while_held() -> bool:
    """Returns whether this system lets a listener with SO_REUSEADDR share a port that another socket has bound."""
    with bind_all_interfaces(0) as holder:
        try:
            with bind_all_interfaces(holder.getsockname()[1]) as listener:
                listener.listen(1)
        except OSError:
            return False
    return True


def is_own_host(host: str) -> bool:
    """Returns whether a name or an address is one of this machine.

    Args:
        host: a name or an address without a port.

    Example:
        >>> is_own_host("localhost"), is_own_host("203.0.113.1")
        (True, False)
    """
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def own_hosts() -> tuple[str, ...]:
    """Returns the addresses at which other machines may reach this one: the interfaces' IPv4 addresses, then the name.

    Example:
        >>> isinstance(own_hosts(), tuple)
        True
    """
    found = []
    for _, name in socket.if_nameindex():
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            # The request is a struct ifreq, whose address begins at byte 20.
            reply = fcntl.ioctl(any_socket, _SIOCGIFADDR, name.encode()[:15].ljust(256, b"\0"))
            found.append(socket.inet_ntoa(reply[20:24]))
    outside = [address for address in found if not address.startswith("127.")]
    return (*outside, socket.gethostname())


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
