"""Opens a UDP socket for IPv4 and IPv6, and finds the addresses of another worker for it."""

from __future__ import annotations

import contextlib
import socket
from typing import Any


def open_socket(*, port: int = 0) -> socket.socket:
    """Returns a socket that receives from all hosts, by IPv6 and IPv4 where the machine has both.

    Args:
        port: the port to receive on; 0 for any free port.

    Raises:
        OSError: if the port is in use.

    Example:
        >>> with open_socket() as udp:
        ...     udp.getsockname()[1] > 0
        True
    """
    try:
        udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return _bound(udp, "::", port)
    except OSError:
        # The machine has no IPv6. If the port is in use, IPv4 says so, too.
        return _bound(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), "0.0.0.0", port)


def resolve(udp: socket.socket, host: str, port: int) -> list[Any]:
    """Returns where to send datagrams for a host: at most one IPv6 and one IPv4 address.

    A host with both addresses gets every datagram twice, because one of the two ways may be cut. Receivers ignore
    repetitions.

    Args:
        udp: a socket from open_socket.
        host: name or address.
        port: UDP port of the worker on that host.

    Raises:
        OSError: if the name does not resolve.

    Example:
        >>> with open_socket() as udp:
        ...     len(resolve(udp, "127.0.0.1", 2222))
        1
    """
    # IPv4 addresses in the notation of IPv6, ::ffff:1.2.3.4, for a socket of IPv6.
    flags = socket.AI_V4MAPPED | socket.AI_ALL if udp.family == socket.AF_INET6 else 0
    try:
        found = socket.getaddrinfo(host, port, family=udp.family, type=socket.SOCK_DGRAM, flags=flags)
    except (socket.gaierror, UnicodeError) as error:
        raise OSError(f"expected the host {host!r} to have an address, received {error}.") from error
    targets = [target for *_, target in found]
    mapped = [target for target in targets if str(target[0]).startswith("::ffff:")]
    native = [target for target in targets if target not in mapped]
    return native[:1] + mapped[:1]


def _bound(udp: socket.socket, host: str, port: int) -> socket.socket:
    udp.setblocking(False)
    try:
        udp.bind((host, port))
    except OSError:
        udp.close()
        raise
    return udp
